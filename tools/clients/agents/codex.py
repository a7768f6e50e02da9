from agents import Agent, Package, Settings, Way

CONFIG = """model = "{model}"
model_provider = "bn"
model_context_window = 65536
check_for_update_on_startup = false

[model_providers.bn]
name = "bn-server"
base_url = "{root}/v1"
wire_api = "responses"

[analytics]
enabled = false
"""


def settings(place):
    return Settings(
        files={".codex/config.toml": CONFIG.format(root=place.root, model=place.model)},
        arguments=["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    )


AGENT = Agent(
    name="Codex CLI",
    package=Package("npm", "@openai/codex", "0.171.0", "node_modules/.bin/codex"),
    notes="It knows nothing of the model but `model_context_window`. `--dangerously-bypass-approvals-and-sandbox` is "
    "for places where it may do everything.",
    ways=[Way("/v1/responses", settings)],
    tool="exec_command",
    arguments=lambda path, text: {"cmd": f"printf %s '{text}' > '{path}'"},
    look="view_image",
    looks_at=lambda path: {"path": str(path)},
    attached=lambda path, question: ["--image", str(path), "--", question],
)

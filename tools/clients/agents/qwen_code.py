import json

from agents import Agent, Package, Settings, Way

KINDS = {
    "openai": ("OPENAI", "/v1"),
    "openai-responses": ("OPENAI", "/v1"),
    "anthropic": ("ANTHROPIC", ""),
}
"""By API name: the prefix of its variables, and the path of the base URL."""


def settings(place, kind):
    prefix, path = KINDS[kind]
    config = {
        "security": {"auth": {"selectedType": kind}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    if place.sees:
        config["model"] = {"generationConfig": {"modalities": {"image": True}}}
    variables = {"BASE_URL": place.root + path, "API_KEY": "none", "MODEL": place.model}
    return Settings(
        variables={f"{prefix}_{name}": value for name, value in variables.items()},
        files={".qwen/settings.json": json.dumps(config, indent=2) + "\n"},
        arguments=["--yolo", "-p"],
    )


AGENT = Agent(
    name="Qwen Code",
    package=Package("npm", "@qwen-code/qwen-code", "0.24.4", "node_modules/.bin/qwen"),
    notes="`--yolo` lets it do everything without a question.",
    ways=[
        Way("/v1/chat/completions", lambda place: settings(place, "openai")),
        Way("/v1/messages", lambda place: settings(place, "anthropic")),
    ],
    tool="write_file",
    arguments=lambda path, text: {"file_path": str(path), "content": text},
    look="read_file",
    looks_at=lambda path: {"file_path": str(path)},
    attached=lambda path, question: [f"{question} @{path}"],
)

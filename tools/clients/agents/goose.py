import platform

from agents import Agent, Package, Settings, Way

BUILT = (
    f"@aaif/goose-binary-{platform.system().lower()}-{'arm64' if platform.machine() in ('aarch64', 'arm64') else 'x64'}"
)


def settings(place, provider, **variables):
    return Settings(
        variables={"GOOSE_PROVIDER": provider, "GOOSE_MODEL": place.model, **variables, "GOOSE_MODE": "auto"},
        arguments=["run", "--no-session", "--with-builtin", "developer", "-t"],
    )


AGENT = Agent(
    name="goose",
    package=Package("npm", BUILT, "1.52.0", f"node_modules/{BUILT}/bin/goose"),
    notes="Hosts are without a path. Pictures that it reads go to `/v1/messages` alone: elsewhere it leaves them out "
    "for models that it does not know.",
    ways=[
        Way(
            "/v1/chat/completions",
            lambda at: settings(at, "openai", OPENAI_HOST=at.root, OPENAI_API_KEY="none"),
            pictures=False,
        ),
        Way("/v1/messages", lambda at: settings(at, "anthropic", ANTHROPIC_HOST=at.root, ANTHROPIC_API_KEY="none")),
        Way("/api/chat", lambda at: settings(at, "ollama", OLLAMA_HOST=at.root), pictures=False),
    ],
    tool="write",
    arguments=lambda path, text: {"path": str(path), "content": text},
    look="read_image",
    looks_at=lambda path: {"source": str(path)},
    quiet={"GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"},
)

from agents import Agent, Package, Settings, Way


def settings(place):
    names = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    return Settings(
        variables={
            "ANTHROPIC_BASE_URL": place.root,
            "ANTHROPIC_AUTH_TOKEN": "none",
            **{f"ANTHROPIC_{name}": place.model for name in names},
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        arguments=["--permission-mode", "acceptEdits", "-p"],
    )


AGENT = Agent(
    name="Claude Code",
    package=Package("npm", "@anthropic-ai/claude-code", "2.1.332", "node_modules/.bin/claude"),
    notes="The base URL is without `/v1`. It asks for large and small models by name, so all names are set.",
    ways=[Way("/v1/messages", settings)],
    tool="Write",
    arguments=lambda path, text: {"file_path": str(path), "content": text},
    look="Read",
    looks_at=lambda path: {"file_path": str(path)},
    attached=lambda path, question: [f"{question} @{path}"],
    quiet={"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1"},
)

from agents import Agent, Package, Settings, Way

CONFIG = """name: bn-server
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: {provider}
    model: {model}
    apiBase: {base}
    apiKey: none
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 65536
      maxTokens: 8192
"""


def settings(place, provider, base):
    files = {".continue/config.yaml": CONFIG.format(model=place.model, provider=provider, base=base)}
    return Settings(files=files, arguments=["--config", str(place.home / ".continue/config.yaml"), "--auto", "-p"])


AGENT = Agent(
    name="Continue",
    package=Package("npm", "@continuedev/cli", "1.5.47", "node_modules/.bin/cn"),
    notes="The editor's extensions read the same file. The program in the terminal sends no pictures.",
    ways=[
        Way("/v1/chat/completions", lambda place: settings(place, "openai", place.root + "/v1")),
        Way("/v1/messages", lambda place: settings(place, "anthropic", place.root + "/v1")),
        Way("/api/chat", lambda place: settings(place, "ollama", place.root)),
    ],
    tool="Write",
    arguments=lambda path, text: {"filepath": str(path), "content": text},
    quiet={"CONTINUE_TELEMETRY_ENABLED": "0"},
)

import json

from agents import Agent, Package, Settings, Way


SEES = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}


def settings(place, package):
    more = SEES if place.sees else {}
    provider = {
        "npm": package,
        "name": "bn-server",
        "options": {"baseURL": place.root + "/v1", "apiKey": "none"},
        "models": {place.model: {"limit": {"context": 65536, "output": 8192}, **more}},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"bn/{place.model}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"bn": provider},
    }
    files = {".config/opencode/opencode.json": json.dumps(config, indent=2) + "\n"}
    return Settings(files=files, arguments=["run"])


AGENT = Agent(
    name="OpenCode",
    package=Package("npm", "opencode-ai", "1.18.33", "node_modules/.bin/opencode"),
    notes="The package decides which API it uses; each takes the base URL with `/v1`. The first one is enough.",
    ways=[
        Way("/v1/chat/completions", lambda place: settings(place, "@ai-sdk/openai-compatible")),
        Way("/v1/responses", lambda place: settings(place, "@ai-sdk/openai")),
        Way("/v1/messages", lambda place: settings(place, "@ai-sdk/anthropic")),
    ],
    tool="write",
    arguments=lambda path, text: {"filePath": str(path), "content": text},
    look="read",
    looks_at=lambda path: {"filePath": str(path)},
    attached=lambda path, question: [question, "--file", str(path)],
    quiet={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
)

import json

from agents import NONE, Agent, Package, Settings, Way


def settings(place, provider, **variables):
    known = {f"{provider}/{place.model}": {"supports_vision": True, "max_input_tokens": 65536}}
    return Settings(
        variables=variables,
        files={".aider.model.metadata.json": json.dumps(known, indent=2) + "\n"} if place.sees else NONE,
        arguments=["--model", f"{provider}/{place.model}", "--no-git", "--yes-always", *place.files, "--message"],
    )


AGENT = Agent(
    name="aider",
    package=Package("pypi", "aider-chat", "0.86.2", "bin/aider"),
    notes="It has no tools: it reads edits in the text, and asks up to three times again for what is none. It needs "
    "Python 3.10 to 3.12.",
    ways=[
        Way(
            "/v1/chat/completions",
            lambda at: settings(at, "openai", OPENAI_API_BASE=at.root + "/v1", OPENAI_API_KEY="none"),
        ),
        Way("/v1/messages", lambda at: settings(at, "anthropic", ANTHROPIC_API_BASE=at.root, ANTHROPIC_API_KEY="none")),
        Way("/api/chat", lambda at: settings(at, "ollama_chat", OLLAMA_API_BASE=at.root)),
    ],
    quiet={
        "AIDER_ANALYTICS_DISABLE": "true",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_SHOW_RELEASE_NOTES": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    attached=lambda path, question: [question, "--file", str(path)],
    edit=lambda name, text: f"{name}\n```\n{text}\n```\n",
)

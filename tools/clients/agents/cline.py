from agents import Agent, Package, Settings, Way


def settings(place):
    given = {"provider": "openai", "apikey": "none", "modelid": place.model, "baseurl": place.root + "/v1"}
    return Settings(
        before=["auth", *(word for name, value in given.items() for word in (f"--{name}", value))],
        arguments=["--auto-approve", "true"],
    )


AGENT = Agent(
    name="Cline",
    package=Package("npm", "cline", "3.0.65", "node_modules/.bin/cline"),
    notes="`cline auth` keeps the settings. In editors the provider is called OpenAI Compatible. With "
    "`CLINE_SESSION_BACKEND_MODE=local` no helper of it stays behind.",
    ways=[Way("/v1/chat/completions", settings)],
    tool="editor",
    arguments=lambda path, text: {"path": str(path), "new_text": text},
    look="read_files",
    looks_at=lambda path: {"files": [{"path": str(path)}]},
    attached=lambda path, question: [f"{question} @{path}"],
    quiet={"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_TELEMETRY_DISABLED": "1"},
)

"""Writes what the agents' trials found into docs/clients.md, and their settings into docs/agents.md."""

import os
import shlex
import textwrap
from pathlib import Path

import agents
from trial import ROOT

CLIENTS = Path(ROOT, "docs", "clients.md")
AGENTS = Path(ROOT, "docs", "agents.md")
HEADING = "## Agents\n"
SHOWN = agents.Place("http://127.0.0.1:8080", "my-model", Path("~"), Path("."), ("FILE",), sees=True)

RESULTS = """
Agents that others wrote, each without its screen, with the settings of [agents](agents.md). Between agent and server a
proxy notes each request. A run is `ok` if the agent ended with status 0, no request of it was refused, and

- *a question*: its output has the model's answer. The model is SmolLM2-135M-Instruct with a template that shows it the
  question alone, since it was trained with 8,192 tokens.
- *two files to write*: both files have their text, and its output has the answer after that. The model is a scripted
  one, made for this: whatever it reads, which is the agent's whole prompt, it writes reasoning and two calls of the
  agent's tool, and when their results are there, a sentence. For agents without tools it writes the edits as text.
- *a picture*: a question with a PNG. The scripted model has a part that sees, and writes one sentence if its template
  was shown a picture and another one if not; the output has the first. The last request with the picture, sent once
  more with a larger one, has as many more tokens as that takes.
- *a picture to read*: the same, with a call of the agent's tool that reads pictures. Its result has the picture.

So this tries requests, streams, calls, pictures and results, not how well a model does with an agent.
"""

INTRO = """# Agents

Coding agents work with `bn-server` as with their own servers. This page has the settings that `make trials` ran them
with; [clients](clients.md#agents) has the results. `make trials` writes it (`tools/clients/agents`).

    bn-server --model model.gguf --model-name my-model --context 64K --port 8080

- An agent's first request has 2,000 (Continue) to 18,000 tokens (Qwen Code), most of them tools and instructions. The
  next ones begin with the same, which the prefix cache keeps. A `--context` of 32K is little, 64K and more is better.
- `--prompt-cache FOLDER` keeps conversations over a restart, and those that memory has no room for: their next request
  reads what was computed before.
- The model has to have been trained to call tools ([chat](chat.md)). Others answer, but call nothing.
- A name that is no model of the server is refused with status 404; with `--any-model 1` it is the model all the same.
- With `BN_API_KEY`, the key takes the place of `none` below.
- Agents send screenshots and images that they read, also as results of tools. A model that sees gets them
  ([images](../hosts/server/README.md#images)). For others, `--unseen-images leave-out` has words in their place; by
  default an image in the question itself is refused, and in results words stand for it. Leave out of the settings below
  what says that the model sees (`attachment`, `modalities`, `supports_vision`) if it does not.
- Fields that the server does not know are left out. `--strict` refuses them: leave it out for agents.
"""


def results(found, date):
    good = sum(result.wrong is None for result in found)
    lines = [
        HEADING + RESULTS,
        f"{good} of {len(found)} runs were so in {date:%B %Y}.",
        "",
        "| agent | version | API | task | requests | result |",
        "|---|---|---|---|---|---|",
    ]
    for result in found:
        wrong = "ok" if result.wrong is None else result.wrong.replace("|", "/")[:160]
        lines.append(
            f"| {result.agent} | {result.version} | `{result.route}` | {result.task} | {result.requests} | {wrong} |"
        )
    return "\n".join(lines) + "\n"


def block(language, text):
    return f"```{language}\n{text.rstrip()}\n```"


def shell(agent, settings):
    program = os.path.basename(agent.package.program)
    lines = [exports(settings.variables)] if settings.variables else []
    if settings.before:
        lines.append(shlex.join([program, *settings.before]))
    lines.append(" ".join([program, *(shown(word) for word in settings.arguments), '"Your question"']))
    return block("sh", "\n".join(lines))


def exports(variables):
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def shown(word):
    return word if word.startswith("~/") else shlex.quote(word)


def part(agent):
    lines = [f"## {agent.name}", "", textwrap.fill(agent.notes, 120, break_on_hyphens=False), ""]
    lines += [
        f"`{agent.package.name}` {agent.package.version}, from {'PyPI' if agent.package.registry == 'pypi' else 'npm'}."
    ]
    first = agent.ways[0].settings(SHOWN)
    for way in agent.ways:
        lines += ["", f"**`{way.route}`**"]
        settings = way.settings(SHOWN)
        for name, text in settings.files.items():
            kind = name.rsplit(".", 1)[-1]
            if way is agent.ways[0]:
                lines += ["", f"`~/{name}`:", "", block(kind, text)]
            elif changed := lines_changed(first.files[name], text):
                lines += ["", f"The same `~/{name}`, but:", "", block(kind, changed)]
        if way is agent.ways[0] or shell(agent, settings) != shell(agent, first):
            lines += ["", shell(agent, settings)]
    if agent.attached:
        lines += ["", "With a picture in the question:", "", block("sh", with_picture(agent, first))]
    if agent.quiet:
        lines += ["", "Set besides, against telemetry, updates and the like:", "", block("sh", exports(agent.quiet))]
    return "\n".join(lines) + "\n"


def with_picture(agent, settings):
    last = map(quoted, agent.attached(Path("shot.png"), "Your question"))
    return " ".join([os.path.basename(agent.package.program), *map(shown, settings.arguments), *last])


def quoted(word):
    return f'"{word}"' if " " in word else shlex.quote(word)


def lines_changed(before, after):
    return "\n".join(line for line in after.splitlines() if line not in before.splitlines())


def keep_agents(head):
    """Replaces the head of docs/clients.md. The part about agents stays."""
    _, heading, rest = CLIENTS.read_text().partition(HEADING) if CLIENTS.exists() else ("", "", "")
    CLIENTS.write_text(head + ("\n" + heading + rest if heading else ""))


def write(found, date):
    head = CLIENTS.read_text().partition(HEADING)[0].rstrip() if CLIENTS.exists() else ""
    CLIENTS.write_text(head + "\n\n" + results(found, date))
    settings()


def settings():
    AGENTS.write_text("\n".join([INTRO, *(part(agents.find(name)) for name in agents.NAMES)]))

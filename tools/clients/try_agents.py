"""Tries bn-server with agents that others wrote, each without its screen: `make trials` (README.md).

python try_agents.py [AGENT ...]     some of them, without docs
KEEP=folder ...                      what they asked for and got, and their output, to look at
"""

import base64
import datetime
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import agents
import install
import made
import pages
import trial
from recorder import Recorder
from trial import seeing

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "my-model"
MADE = ("one.txt", "two.txt")
WRITTEN = "hello from the agent"
THOUGHT = "<think>\nTwo files, so two calls.\n</think>\n\n"
SAID = "The files have their text now."
PICTURE = "picture.png"
OF_PICTURE = 4 * (8 + 1)
"""Tokens of it in the prompt of a model with `made.tower`: four rows of eight, and one behind each."""
SEEN = "So this is a picture."
UNSEEN = "No picture came."
BASE64 = re.compile(rb"(?:iVBORw0KGgo|/9j/|UklGR)[A-Za-z0-9+/]{80,}={0,2}")
"""A PNG, JPEG or WebP."""
LIMIT = int(os.environ.get("LIMIT", 600))
"""The most seconds of an agent's run."""
HARD_TO_REACH = "http://127.0.0.1:9"
"""Nothing listens there, so an agent reaches only this machine."""


class Result(NamedTuple):
    agent: str
    version: str
    route: str
    task: str
    requests: int
    wrong: str | None


class Run(NamedTuple):
    """The record of an agent's run."""

    status: int | None  # None: it was ended
    output: str
    exchanges: list
    texts: list  # of the files that it was to make
    port: int  # of the server, which still runs


class Task(NamedTuple):
    name: str
    question: str
    make: Callable  # (agent, place, path): writes the model, a GGUF file
    context: str  # tokens
    wrong: Callable  # (agent, run): what was wrong, or None
    sees: bool = False
    asked: Callable = lambda agent, place, question: [question]  # the agent's last arguments
    fits: Callable = lambda agent, way: True


def smollm2():
    folder = subprocess.run(
        [sys.executable, os.path.join(trial.ROOT, "tests", "real", "fetch.py"), SMOLLM2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split("\n")
    return next(Path(line) / SMOLLM2 for line in folder if (Path(line) / SMOLLM2).is_file())


def asked(agent, place, path):
    made.asked(smollm2(), path)


def scripted(agent, place, path):
    if agent.edit:
        edits = "\n".join(agent.edit(name, WRITTEN) for name in MADE)
        made.scripted(smollm2(), path, "", "", THOUGHT + edits)
    else:
        calls = [{"name": agent.tool, "arguments": agent.arguments(place.work / name, WRITTEN)} for name in MADE]
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
        made.scripted(smollm2(), path, agent.tool, THOUGHT + written, SAID)


def told(agent, place, path):
    """A model that sees the picture that the question has."""
    made.tower(path.with_name(f"mmproj-{path.name}"))
    made.scripted(smollm2(), path, "", "", UNSEEN, SEEN)


def looked(agent, place, path):
    """A model that reads the picture with a tool, and sees it in its result."""
    made.tower(path.with_name(f"mmproj-{path.name}"))
    call = {"name": agent.look, "arguments": agent.looks_at(place.work / PICTURE)}
    written = f"{THOUGHT}<tool_call>\n{json.dumps(call)}\n</tool_call>"
    made.scripted(smollm2(), path, agent.look, written, UNSEEN, SEEN)


def plain(text):
    return re.sub(r"\W", "", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))


def texts(answer):
    """The text of an answer of any API, streamed or not."""
    return "".join(part for line in lines(answer) for part in found(json.loads(line)))


def lines(answer):
    """The JSON objects of an answer."""
    data = [line.removeprefix("data:").strip() for line in answer.decode("utf-8", "replace").splitlines()]
    return [line for line in data if line.startswith("{")]


def found(event):
    kind = event.get("type")
    if kind == "response.output_text.delta":
        return [event["delta"]]
    if kind == "content_block_delta":
        return [event["delta"].get("text") or ""]
    if "choices" in event:
        return [
            (choice.get("delta") or choice.get("message") or {}).get("content") or "" for choice in event["choices"]
        ]
    if "done" in event:
        return [(event.get("message") or {}).get("content") or ""]
    return []


def failed(agent, run):
    """Errors that do not depend on the task."""
    for exchange in run.exchanges:
        path = exchange.path.split("?")[0]
        forgiven = (exchange.method, path, exchange.status) in agent.forgiven
        if not 200 <= exchange.status < 400 and not forgiven:
            reason = exchange.answer.decode("utf-8", "replace")[-200:]
            return f"{exchange.method} {path}: status {exchange.status} {reason}"
    if run.status is None:
        return f"not over after {LIMIT} seconds"
    if run.status != 0:
        last = run.output.strip().splitlines()[-1:] or [""]
        return f"exit status {run.status}: {last[0][:200]}"
    return None


def unanswered(agent, run):
    answers = [plain(texts(e.answer))[:24] for e in run.exchanges if e.method == "POST"]
    shown = plain(run.output)
    return None if any(answer and answer in shown for answer in answers) else "its output has none of the answers"


def unwritten(agent, run):
    for name, text in zip(MADE, run.texts, strict=True):
        if text is None:
            return f"it made no {name}"
        if text.strip() != WRITTEN:
            return f"{name} says {text[:60]!r}"
    if not agent.edit and plain(SAID) not in plain(run.output):
        return "its output lacks the answer after the calls"
    return None


def unseen(agent, run):
    if plain(SEEN) not in plain(run.output):
        return f"it lacks the answer to a picture: {run.output.strip()[-200:]}"
    with_picture = [e for e in run.exchanges if e.method == "POST" and BASE64.search(e.body)]
    return miscounted(run, with_picture[-1]) if with_picture else "no request has a picture"


def miscounted(run, exchange):
    """Whether a picture of twice the height has not twice the tokens in the same request."""
    fields = {**json.loads(exchange.body), "stream": False}  # not every stream has counts
    fields.pop("stream_options", None)
    same = json.dumps(fields).encode()
    twice, count = BASE64.subn(base64.b64encode(seeing.png(640, 640)), same)
    own, other = (prompt_tokens(answered(run.port, exchange.path, body)) for body in (same, twice))
    more = count * OF_PICTURE
    return None if other - own == more else f"{other - own} tokens more, not {more}, of {count} larger pictures"


def answered(port, path, body):
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    server.request("POST", path, body)
    answer = server.getresponse().read()
    server.close()
    return answer


def prompt_tokens(answer):
    """The tokens of the prompt, cached ones too, as an answer of any API counts them."""
    values = [json.loads(line) for line in lines(answer)]
    return max(map(counted, values), default=0)


def counted(value):
    if not isinstance(value, dict):
        return 0
    # Anthropic's counts are apart; those of others have the cached ones inside.
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
    own = sum(value.get(name) or 0 for name in ("input_tokens", *cached, "prompt_tokens", "prompt_eval_count"))
    return max([own, *map(counted, value.values())])


TASKS = [
    Task("a question", "Say hello to the reader.", asked, "2048", unanswered),
    Task("two files to write", f"Write the text '{WRITTEN}' into {' and '.join(MADE)}.", scripted, "65536", unwritten),
    Task(
        "a picture",
        "What is in this picture?",
        told,
        "65536",
        unseen,
        sees=True,
        asked=lambda agent, place, question: agent.attached(place.work / PICTURE, question),
        fits=lambda agent, way: agent.attached and way.pictures,
    ),
    Task(
        "a picture to read",
        f"Look at {PICTURE}.",
        looked,
        "65536",
        unseen,
        sees=True,
        fits=lambda agent, way: agent.look and way.pictures,
    ),
]


class Server:
    def __init__(self, model, context, log):
        command = [
            trial.PROGRAM,
            "--port",
            "0",
            "--model",
            str(model),
            "--model-name",
            MODEL,
            "--context",
            context,
            "--memory-limit",
            "3G",
        ]
        with open(log, "w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        until = time.monotonic() + 120
        while "serving" not in (told := Path(log).read_text()):
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"the server: {told}")
            time.sleep(0.1)
        self.port = int(re.search(r"port (\d+)", told).group(1))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment(agent, settings, home):
    path = os.pathsep.join([str(install.node()), "/usr/local/bin", "/usr/bin", "/bin"])
    return {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PATH": path,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTP_PROXY": HARD_TO_REACH,
        "HTTPS_PROXY": HARD_TO_REACH,
        "NO_PROXY": "127.0.0.1,localhost",
        **agent.quiet,
        **settings.variables,
    }


def execute(command, place, variables, log):
    """The exit status, or None if the agent was killed."""
    with open(log, "a") as out:
        process = subprocess.Popen(
            command,
            cwd=place.work,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    until = time.monotonic() + LIMIT
    try:
        while not (over := is_over(process)) and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # helpers that it left, too
        process.wait()
    return process.returncode if over else None


def is_over(process):
    """Whether the process has ended. It is not reaped, so that its id is not reused."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def attempt(agent, way, task, home):
    """One run, with a home of its own, and what was wrong with it."""
    program = str(install.program(agent.package))
    place = agents.Place("", MODEL, home, home / "work", MADE, task.sees)
    fill(place.work, {"README.txt": "A folder to try an agent in.\n"})
    (place.work / PICTURE).write_bytes(seeing.png(640, 320))
    if agent.edit:
        fill(place.work, dict.fromkeys(MADE, "nothing yet\n"))
    model = home / "tmp" / f"{MODEL}.gguf"
    model.parent.mkdir()
    task.make(agent, place, model)
    server = Server(model, task.context, home / "server.log")
    proxy = Recorder(server.port)
    place = place._replace(root=proxy.root)
    settings = way.settings(place)
    fill(home, settings.files)
    variables = environment(agent, settings, home)
    log = home / "output.log"
    try:
        if settings.before:
            execute([program, *settings.before], place, variables, log)
        last = task.asked(agent, place, task.question)
        status = execute([program, *settings.arguments, *last], place, variables, log)
        written = [place.work / name for name in MADE]
        contents = [path.read_text() if path.exists() else None for path in written]
        run = Run(status, log.read_text(errors="replace"), proxy.exchanges, contents, server.port)
        return run, failed(agent, run) or task.wrong(agent, run)
    finally:
        proxy.stop()
        server.stop()


def fill(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def keep(run, home, name):
    """A readable account of the run."""
    folder = Path(os.environ["KEEP"], name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for log in ("output.log", "server.log"):
        shutil.copy(home / log, folder)
    with open(folder / "requests.txt", "w") as out:
        for i, exchange in enumerate(run.exchanges):
            out.write(f"{i} {exchange.method} {exchange.path} {exchange.status}\n")
            (folder / f"{i}.request").write_bytes(exchange.body)
            (folder / f"{i}.answer").write_bytes(exchange.answer)


def try_agent(name):
    agent = agents.find(name)
    for way in agent.ways:
        for task in (task for task in TASKS if task.fits(agent, way)):
            home = Path(tempfile.mkdtemp())
            requests = 0
            try:
                run, wrong = attempt(agent, way, task, home)
                requests = len(run.exchanges)
                if os.environ.get("KEEP"):
                    keep(run, home, f"{name}{way.route.replace('/', '-')}-{task.name.replace(' ', '-')}")
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                wrong = f"{type(error).__name__}: {error}"
            finally:
                shutil.rmtree(home, ignore_errors=True)
            wrong = wrong and " ".join(wrong.split())
            print(f"{agent.name:12} {way.route:22} {task.name:18} {requests:3} {wrong or 'ok'}", flush=True)
            yield Result(agent.name, agent.package.version, way.route, task.name, requests, wrong)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = sys.argv[1:]
    results = [result for name in wanted or agents.NAMES for result in try_agent(name)]
    if not wanted:
        pages.write(results, datetime.date.today())
    return any(result.wrong for result in results)


if __name__ == "__main__":
    sys.exit(main())

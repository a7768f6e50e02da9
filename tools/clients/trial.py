"""Shared by all trials: a server, calls that are tried one by one, and their results."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import traceback

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.append(os.path.join(ROOT, "hosts", "server", "tests"))
import seeing  # noqa: E402, F401

PROGRAM = os.environ.get("BN_SERVER", os.path.join(ROOT, "target", "c", "bn-server"))
CHAT = [{"role": "user", "content": "17+25="}]  # the demo model adds
CALLS = []
"""(client, version, call, result), in order."""


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen([PROGRAM, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
        self.port = re.search(r"port (\d+)", self.process.stderr.readline()).group(1)
        for line in self.process.stderr:
            if "serving" in line:
                break
        self.root = f"http://127.0.0.1:{self.port}"
        self.v1 = self.root + "/v1"

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stderr.close()


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def told(client, version, call, wrong):
    CALLS.append((client, version, call, wrong))
    print(f"{client:16} {call:60} {'ok' if wrong is None else wrong}", flush=True)


def trials(package, *calls):
    """Tries each call, (name, function), of a client from PyPI. Functions assert on their results."""
    version = version_of(package)
    for name, function in calls:
        try:
            function()
            told(package, version, name, None)
        except Exception as error:  # any client's, of any kind
            if os.environ.get("TRACE"):
                traceback.print_exc()
            told(package, version, name, f"{type(error).__name__}: {error}".split("\n")[0][:160])


def node(server, folder):
    """The clients of node.mjs, which prints a line of JSON for each call."""
    script = os.path.join(folder, "node.mjs")
    done = subprocess.run(["node", script, server.root], cwd=folder, capture_output=True, text=True, timeout=300)
    for line in done.stdout.splitlines():
        made = json.loads(line)
        told(made["client"], made["version"], made["call"], made["wrong"])
    if done.returncode != 0:
        told("node", "", "node.mjs", done.stderr.strip().splitlines()[-1][:160])

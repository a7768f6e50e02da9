"""Installs agents from their registries, each version in a folder of its own below target/trials/agents."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from trial import ROOT

FOLDER = Path(ROOT, "target", "trials", "agents")
NODE = "22.23.3"
"""For agents that need a newer Node than the system has."""


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def npm(folder, *packages):
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *packages)


def pypi(folder, *packages):
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def once(name, version, fill):
    """A folder that `fill` has filled completely."""
    folder = FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{version}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fill(folder)
        (folder / "ready").touch()
    return folder


def program(package):
    """The path of an agent's program."""
    if package.registry == "npm":
        folder = once(package.name, package.version, lambda to: npm(to, f"{package.name}@{package.version}"))
    else:
        folder = once(package.name, package.version, lambda to: pypi(to, f"{package.name}=={package.version}"))
    return folder / package.program


def node():
    """The folder of a recent enough Node."""
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout if found else "v0"
    if int(version[1:].split(".")[0]) >= int(NODE.split(".")[0]):
        return Path(os.path.dirname(found))
    return once("node", NODE, lambda to: npm(to, f"node@{NODE}")) / "node_modules" / "node" / "bin"

"""The agents of the trials. Each module has an AGENT."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

NONE = MappingProxyType({})

NAMES = ("claude_code", "codex", "opencode", "qwen_code", "cline", "continue_cli", "goose", "aider")


class Package(NamedTuple):
    registry: str  # npm or pypi
    name: str
    version: str
    program: str  # below the folder that it is installed in


class Place(NamedTuple):
    """The folders and addresses of a run."""

    root: str  # of the server
    model: str
    home: Path
    work: Path
    files: tuple[str, ...]  # to make, in `work`
    sees: bool = False  # the model


class Settings(NamedTuple):
    """An agent's settings for the server, as docs/agents.md shows them."""

    variables: Mapping[str, str] = NONE
    files: Mapping[str, str] = NONE  # below the home
    before: Sequence[str] = ()  # arguments of the program, to run it once before
    arguments: Sequence[str] = ()  # and the question after them


class Way(NamedTuple):
    """An API that an agent can use."""

    route: str
    settings: Callable[[Place], Settings]
    pictures: bool = True  # the agent sends them so


class Agent(NamedTuple):
    name: str
    package: Package
    notes: str  # for docs/agents.md
    ways: list[Way]
    tool: str = ""
    arguments: Callable[[Path, str], dict] | None = None
    """The arguments of a call of `tool` that writes a text into a file."""
    edit: Callable[[str, str], str] | None = None
    """For an agent without tools: an answer that edits the file."""
    look: str = ""
    """A tool that reads a picture."""
    looks_at: Callable[[Path], dict] | None = None
    """The arguments of its call."""
    attached: Callable[[Path, str], Sequence[str]] | None = None
    """The last arguments for a question with a picture."""
    quiet: Mapping[str, str] = NONE
    """Variables that turn off requests to other hosts: telemetry, updates, lists of models."""
    forgiven: tuple[tuple[str, str, int], ...] = ()
    """Method, path and status of refusals that the agent's own server also returns."""


def find(name):
    return importlib.import_module(f"agents.{name}").AGENT

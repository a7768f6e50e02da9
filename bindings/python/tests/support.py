"""Helpers of the tests: golden texts, a slow engine, programs in separate processes."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
PROMPTS = json.loads((ROOT / "tests/golden/demo_prompts.json").read_text())
QUESTIONS = [entry for entry in PROMPTS if entry["kind"] == "sum"]
STORIES = [entry for entry in PROMPTS if entry["kind"] == "story"]
#: A prompt of LONG takes four seconds, which is longer than a test lets it run.
SLOW = "builtin:echo?us_per_token=200"
LONG = "a" * 20000
SAMPLING = {"temperature": 1.0, "max_new_tokens": 16}


def python(program, timeout=60):
    """Runs a program in a new interpreter, and returns its exit status, output and errors."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=timeout, check=False
    )
    return run.returncode, run.stdout, run.stderr

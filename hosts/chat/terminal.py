#!/usr/bin/env python3
"""terminal.py BN-CHAT: a person at a terminal, played through a pseudo-terminal. builtin:echo answers with its prompt."""

import fcntl
import json
import os
import pty
import select
import signal
import stat
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "server" / "tests"))
import seeing

PROGRAM = os.path.abspath(sys.argv[1])
GUARD_S = 60
UP, DOWN, LEFT, HOME, TAB, ENTER = b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\x1b[H", b"\t", b"\r"
CTRL_C, CTRL_D, CTRL_R = b"\x03", b"\x04", b"\x12"
PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"
READY, DRAWN = b"\x1b[?2004h", b"\x1b[?2026l"  # the line editor begins; its prompt is there


class Chat:
    """bn-chat on a terminal of its own, with a home folder of its own."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        model: str = "builtin:echo",
        term: str = "xterm",
        columns: int = 0,
        edits: bool = True,
    ) -> None:
        environment = {**os.environ, "HOME": str(home), "TERM": term}
        environment.pop("XDG_STATE_HOME", None)
        self.seen = self.prompt = b""
        self.ended = False
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            if columns:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
            os.chdir(home)
            os.execve(PROGRAM, ["bn-chat", model, *arguments], environment)
        if edits:
            self.ready()

    def send(self, *keys: bytes) -> None:
        data = b"".join(keys)
        while data:
            self.gather(0)
            data = data[os.write(self.terminal, data[:512]) :]

    def gather(self, wait_s: float) -> bool:
        if not select.select([self.terminal], [], [], wait_s)[0]:
            return False
        try:
            more = os.read(self.terminal, 65536)
        except OSError:  # Linux says so at the end
            more = b""
        self.seen += more
        self.ended = not more
        return bool(more)

    def expect(self, text: bytes) -> bytes:
        """Waits for the text; returns what came before it and forgets both."""
        end = time.monotonic() + GUARD_S
        while text not in self.seen:
            if not self.gather(1) and (self.ended or time.monotonic() > end):
                raise AssertionError(f"{text!r} did not come, but {self.seen[-2000:]!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def ready(self) -> bytes:
        """Returns what came before the prompt."""
        before = self.expect(READY)
        self.prompt = self.expect(DRAWN)
        return before

    def ask(self, *keys: bytes) -> str:
        """Sends a line and returns what came until the next prompt."""
        self.send(*keys, ENTER)
        return self.ready().decode().replace("\r\n", "\n")

    def leave(self, *keys: bytes, code: int = 0) -> None:
        """Ends it by Ctrl-D, or by other keys."""
        self.send(*keys or (CTRL_D,))
        self.end(code)

    def end(self, code: int = 0) -> None:
        while self.gather(GUARD_S):
            pass
        os.close(self.terminal)
        ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert ended == code, f"it ended with {ended}: {self.seen.decode()}"


def has(answer: str, *wanted: str) -> None:
    for text in wanted:
        assert text in answer, f"{text[:200]!r} is not in ...{answer[-1500:]!r}"


def test_editing(home: Path) -> None:
    chat = Chat(home, "--max-tokens", "0")
    has(chat.ask(b"helo", LEFT, b"l", HOME, b"Oh "), "user: Oh hello\n")
    has(chat.ask("Grüße, 世界".encode(), LEFT, LEFT, b"X"), "user: Grüße, X世界\n")
    has(chat.ask(UP, UP), "user: Oh hello\n")
    has(chat.ask(PASTE, b"one\rtwo\n\n", PASTED, b"three"), "user: one\ntwo\n\nthree\n")
    chat.send(b"four\\", ENTER)
    chat.ready()
    assert b"... " in chat.prompt
    has(chat.ask(b"five"), "user: four\nfive\n")
    chat.send(b'"""', ENTER)
    chat.ready()
    assert b"... " in chat.prompt
    has(chat.ask(b'/six"""'), "user: /six\n")
    chat.send(b"forgotten", CTRL_C)
    chat.ready()
    has(chat.ask(b"again"), "user: again\n")
    chat.leave()


def test_long_line(home: Path) -> None:
    """Terminals alone cut lines at 4095 bytes."""
    chat = Chat(home, "--max-tokens", "0", "--history", "none")
    long = "x" * 10_000
    has(chat.ask(f"<{long}>".encode()), f"user: <{long}>\n")
    chat.ask(b"/reset")
    has(chat.ask(PASTE, b"y" * 20_000, PASTED), f"user: {'y' * 20_000}\n")
    chat.leave()


def test_history(home: Path) -> None:
    """Earlier prompts are there in the next chat."""
    file = home / ".local/state/bn-chat/history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines()
    assert lines[:2] == ["Oh hello", "Grüße, X世界"] and r"one\ntwo\n\nthree" in lines and lines[-1] == "again", lines
    chat = Chat(home)
    has(chat.ask(UP, UP), "user: /six\n")
    has(chat.ask(CTRL_R, b"one"), "user: one\ntwo\n\nthree\n")
    chat.leave()
    chat = Chat(home, "--history", "none")
    has(chat.ask(UP, b"new"), "user: new\n")
    chat.leave()
    assert "new" not in file.read_text()


def test_long_history(home: Path) -> None:
    file = home / "many"
    file.write_text("".join(f"prompt {i}\n" for i in range(3000)))
    chat = Chat(home, "--history", str(file))
    has(chat.ask(UP, b"!"), "user: prompt 2999!\n")
    chat.leave()
    lines = file.read_text().splitlines()
    assert len(lines) == 1001 and lines[0] == "prompt 2000" and lines[-1] == "prompt 2999!", (len(lines), lines[0])


def test_commands(home: Path) -> None:
    chat = Chat(home)
    has(chat.ask(b"/se", TAB, b"temp", TAB, b"0.5"), "(temperature is 0.5)")
    has(chat.ask(b"/set top_k x"), "top_k cannot be 'x'")
    has(chat.ask(b"/set quick 1"), "no setting 'quick'")
    has(chat.ask(b"/set max_tokens 7"), "(max_tokens is 7)")
    has(chat.ask(b'/set system "Be brief."'), "the system prompt is set")
    settings = " ".join(chat.ask(b"/set").split())
    has(settings, "temperature 0.5", "top_k 40 (default)", "max_tokens 7", "system Be brief.")
    has(chat.ask(b"hello"), "cut after 7 tokens")
    chat.ask(b"/set max_tokens")
    has(chat.ask(b"/regen"), "user: hello\n")
    has(chat.ask(b"/set"), "1024 (default)")
    has(chat.ask(b"/regenerate"), "user: hello\n")
    has(chat.ask(b"/he", TAB), "/regen", "Ctrl-R")
    has(chat.ask(b"/?"), "/regen", "Ctrl-R")
    has(chat.ask(b"/clear"), "forgotten")
    chat.leave()


def test_saving(home: Path) -> None:
    chat = Chat(home, "--system", "Be brief.")
    has(chat.ask(b"/save kept.json"), "saved: 1 message in")
    has(chat.ask(b'say "\xc3\xa9\\ok"'), "assistant: \n")
    has(chat.ask(b"/save ke", TAB), "saved: 3 messages", "MiB, in kept.json.kv")
    chat.leave()
    messages = json.loads((home / "kept.json").read_text())["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[1]["content"] == 'say "é\\ok"', messages
    assert stat.S_IMODE((home / "kept.json").stat().st_mode) == 0o600

    chat = Chat(home)
    has(chat.ask(b"/load kept.json"), "(3 messages)")
    has(chat.ask(b"more"), 'user: say "é\\ok"\nassistant: ', "user: more\n")
    cached = int(chat.ask(b"/stats").split(" of them cached")[0].split()[-1])
    assert cached > 0
    (home / "kept.json.kv").unlink()
    has(chat.ask(b"/load kept.json"), "the next answer computes them first")
    has(chat.ask(b"/load nowhere"), "nowhere: No such file")
    (home / "bad.json").write_text('{"messages": [{"role": "assistant", "content": "x"}]}')
    has(chat.ask(b"/load bad.json"), "do not take turns")
    has(chat.ask(b"more"), 'user: say "é\\ok"\n')
    has(chat.ask(b"/save /nowhere/x"), "/nowhere/x: No such file")
    chat.leave()


def test_interrupts(home: Path) -> None:
    """Ctrl-C stops an answer and the chat goes on; twice at the prompt, it ends the program."""
    chat = Chat(home, model="builtin:echo?us_per_token=10000")
    chat.send(b"y" * 300, ENTER)
    chat.expect(b"user: yy")
    chat.send(CTRL_C)
    has(chat.ready().decode(), "(cancelled)")
    has(chat.ask(b"/reset"), "forgotten")
    has(chat.ask(b"hi"), "user: hi\n")
    os.kill(chat.pid, signal.SIGWINCH)
    chat.send(CTRL_C)
    has(chat.ready().decode(), "Ctrl-C again")
    chat.leave(CTRL_C)


def test_one_prompt(home: Path) -> None:
    """A prompt of the command line is answered, and nothing is asked. Control characters do not reach the terminal."""
    text = "\x1b[31mred\x1b]0;title\x07 \u202etfel \x9b1m"
    for arguments in (text,), ("-p", text):
        chat = Chat(home, *arguments, edits=False)
        chat.end()
        assert chat.seen.decode() == "user: [31mred]0;title tfel 1m\r\nassistant: \r\n", chat.seen
    chat = Chat(home, "-p", "y" * 300, model="builtin:echo?us_per_token=10000", edits=False)
    chat.expect(b"user: yy")
    chat.leave(CTRL_C, code=130)


def test_long_words(home: Path) -> None:
    """Lines end between words."""
    chat = Chat(home, "-p", "The quick brown fox jumps over the lazy dog, " + "z" * 40, columns=20, edits=False)
    chat.end()
    lines = chat.seen.decode().split("\r\n")
    assert lines[:3] == ["user: The quick", "brown fox jumps", "over the lazy dog, " + "z" * 40], lines


def test_a_damaged_image_leaves_the_others(home: Path) -> None:
    model = seeing.make(str(home / "see"))
    good = seeing.png(21, 30)
    (home / "good.png").write_bytes(good)
    (home / "bad.png").write_bytes(good[:60] + bytes([good[60] ^ 255]) + good[61:])  # only its decoder finds this
    chat = Chat(home, model=model)

    def asked(*images: str) -> int:
        """The prompt's tokens when a question has these images, of which a damaged one is refused."""
        chat.ask(b"/reset")
        for name in images:
            has(chat.ask(f"/image {name}".encode()), "tokens, before your next message")
        answer = chat.ask(b"What is it?")
        if "bad.png" in images:
            has(answer, "bad.png: the picture is damaged", "(the other image is kept for your next message)")
            chat.ask(b"What is it?")
        return int(chat.ask(b"/stats").split("last turn: ")[1].split(" ")[0])

    one = asked("good.png")
    assert asked() < one
    assert asked("good.png", "bad.png") == one
    assert asked("bad.png", "good.png") == one
    chat.leave()


def test_simple_terminal(home: Path) -> None:
    """A terminal without keys to edit by."""
    chat = Chat(home, term="dumb", edits=False)
    chat.expect(b"> ")
    chat.send(b"hi\n")
    chat.expect(b"user: hi\r\nassistant: \r\n> ")
    chat.send(CTRL_C)
    chat.expect(b"Ctrl-C again")
    chat.expect(b"> ")
    chat.leave(b"/bye\n")
    assert b"\x1b" not in chat.seen


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(Path(home))
    print("bn-chat edits, remembers, completes, saves and loads at a terminal")


main()

#!/usr/bin/env python3
"""test.py BN-CHAT [UNITTEST'S ARGUMENTS]: models by name, with a small hub on 127.0.0.1. BN_SERVER: bn-server's path.

The hub answers as huggingface.co does: /api/models/.../revision/main?blobs=true and /OWNER/NAME/resolve/COMMIT/FILE,
large files by a redirect to another host. Where the package huggingface_hub is there, it must find the files in the cache.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = Path(__file__).resolve().parents[2]
DEMO = (ROOT / "models/bn-demo.gguf").read_bytes()
SHARDED = ROOT / "tests/golden/models/llama-sharded"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GUARD_S = 60
# Runs a program whose files may have this many bytes. Python ignores SIGXFSZ, and the program inherits that.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def checksum(data: bytes, large: bool) -> str:
    return hashlib.sha256(data).hexdigest() if large else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Serves files, misbehaves as it is told to, and records requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}  # listed in place of the right ones
        self.token = ""  # needed for files
        self.cuts: list[int] = []  # of the next downloads: end them after so many bytes
        self.stall = threading.Event()  # set: a cut download waits in place of ending
        self.damaged = 0  # downloads that have a wrong byte
        self.ranges = True
        self.seen: list[tuple[str, str, dict[str, str]]] = []  # server, path, headers
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), self.handler(name)) for name in ("hub", "storage")]
        self.ports = [server.server_port for server in self.servers]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stall.clear()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def downloads(self) -> list[str]:
        return [headers.get("Range", "") for server, path, headers in self.seen if server == "storage"]

    def listed(self) -> bytes:
        files = []
        for name, data in self.files.items():
            large = name.endswith((".gguf", ".safetensors"))
            size = self.sizes.get(name, len(data))
            file = {"rfilename": name, "size": size, "blobId": checksum(data, False)}
            files.append(file | ({"lfs": {"sha256": checksum(data, True), "size": size}} if large else {}))
        return json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": files}).encode()

    def handler(self, name: str) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.seen.append((name, self.path, {header.title(): value for header, value in self.headers.items()}))
                try:
                    self.storage() if name == "storage" else self.hub()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def answer(self, status: int, data: bytes, **headers: str) -> None:
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def hub(self) -> None:
                file = self.path.removeprefix(f"/tiny/model/resolve/{COMMIT}/")
                if self.path == "/api/models/tiny/model/revision/main?blobs=true":
                    self.answer(200, hub.listed())
                elif self.path.startswith("/api/models/"):
                    self.answer(401 if "Authorization" not in self.headers else 404, b"{}")
                elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                    self.answer(401 if "Authorization" not in self.headers else 403, b"{}")
                elif file not in hub.files:
                    self.answer(404, b"{}")
                elif file.endswith((".gguf", ".safetensors")):
                    self.answer(302, b"", Location=f"http://localhost:{hub.ports[1]}/{file}?signed=1")
                else:
                    self.answer(200, hub.files[file])

            def storage(self) -> None:
                data = hub.files[self.path.removeprefix("/").removesuffix("?signed=1")]
                if hub.damaged > 0:
                    hub.damaged -= 1
                    data = bytes([data[0] ^ 1]) + data[1:]
                first = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
                partial = hub.ranges and "Range" in self.headers
                part = data[int(first) :] if partial else data
                self.send_response(206 if partial else 200)
                if partial:
                    self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                cut = hub.cuts.pop(0) if hub.cuts else len(part)
                self.wfile.write(part[:cut])
                self.wfile.flush()
                while cut < len(part) and hub.stall.is_set():
                    time.sleep(0.05)
                self.close_connection = True

        return Handler


class Models(unittest.TestCase):
    def setUp(self) -> None:
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = Path(home.name)
        self.cache = self.home / ".cache/huggingface/hub"
        self.model = self.cache / "models--tiny--model"
        self.hub.files = {"README.md": b"# tiny\n", "tiny-Q4_K_M.gguf": DEMO, "tiny-Q8_0.gguf": b"8" * 9000}
        self.environment = {"HOME": home.name, "HF_ENDPOINT": f"http://127.0.0.1:{self.hub.ports[0]}/"}
        self.blob = self.model / "blobs" / checksum(DEMO, True)
        self.part = self.blob.with_name(self.blob.name + ".incomplete")

    def start(self, model: str, **more: str) -> subprocess.Popen[str]:
        environment = {**self.environment, **more}
        limit = environment.pop("LIMIT", None)
        command = [PROGRAM, model] if limit is None else [sys.executable, "-c", LIMITED, limit, PROGRAM, model]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, model: str = "hf:tiny/model", **more: str) -> tuple[int, str, str]:
        process = self.start(model, **more)
        out, error = process.communicate("17+25=\n", GUARD_S)
        return process.returncode, out, error

    def answers(self, model: str = "hf:tiny/model", **more: str) -> str:
        code, out, error = self.ask(model, **more)
        self.assertEqual((code, out), (0, "42\n"), error)
        return error

    def refuses(self, *words: str, model: str = "hf:tiny/model", **more: str) -> str:
        code, out, error = self.ask(model, **more)
        self.assertEqual((code, out), (1, ""), error)
        for word in words:
            self.assertIn(word, error)
        return error

    def test_layout(self) -> None:
        self.assertIn("downloading tiny-Q4_K_M.gguf (1.2 MiB)", self.answers())
        link = self.model / f"snapshots/{COMMIT}/tiny-Q4_K_M.gguf"
        self.assertEqual(os.readlink(link), f"../../blobs/{self.blob.name}")
        self.assertEqual((self.model / "refs/main").read_text(), COMMIT)
        self.assertEqual([file.name for file in (self.model / "blobs").iterdir()], [self.blob.name])
        self.assertTrue((self.cache / f".locks/models--tiny--model/{self.blob.name}.lock").exists())
        # Again: nothing is downloaded. Without the hub: the copy is used.
        self.answers()
        self.assertEqual(self.hub.downloads(), [""])
        asked = len(self.hub.seen)
        self.answers(HF_HUB_OFFLINE="1")
        self.assertEqual(len(self.hub.seen), asked)
        self.assertIn("in the cache is used", self.answers(HF_ENDPOINT="http://127.0.0.1:1"))
        self.found_by_huggingface_hub("tiny-Q4_K_M.gguf", link)

    def found_by_huggingface_hub(self, name: str, link: Path) -> None:
        script = "import sys, huggingface_hub as hub; print(hub.hf_hub_download('tiny/model', sys.argv[1]))"
        environment = {**os.environ, "HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
            environment.pop(variable, None)
        if subprocess.run([sys.executable, "-c", "import huggingface_hub"], capture_output=True).returncode != 0:
            return
        found = subprocess.run([sys.executable, "-c", script, name], env=environment, capture_output=True, text=True)
        self.assertEqual(found.stdout.strip(), str(link), found.stderr)

    def test_places(self) -> None:
        for variable, folder in (("HF_HUB_CACHE", "a"), ("HF_HOME", "b/hub"), ("XDG_CACHE_HOME", "c/huggingface/hub")):
            value = self.home / folder.split("/")[0]
            self.answers(**{variable: str(value)})
            self.assertTrue((self.home / folder / "models--tiny--model/refs/main").exists(), variable)

    def test_choice(self) -> None:
        self.hub.files |= {"tiny.imatrix.gguf": b"m", "tiny-TQ2_0.gguf": DEMO, "tiny-I2_S.gguf": DEMO + b"\0" * 64}
        self.answers("hf:tiny/model:tq2_0")
        self.answers("hf:tiny/model:tiny-TQ2_0.gguf")
        del self.hub.files["tiny-Q4_K_M.gguf"]
        self.answers()  # TQ2_0 is smaller than I2_S
        self.assertEqual(len(self.hub.downloads()), 1)
        self.refuses("no GGUF file or type 'Q4_K'", "8.8 KiB    tiny-Q8_0.gguf", model="hf:tiny/model:Q4_K")
        self.refuses("is no name on the hub", model="hf:tiny/model/more")
        self.refuses("is no name on the hub", model="hf:../model")

    def test_split(self) -> None:
        self.hub.files = {f"q/tiny-Q4_K_M-0000{i}-of-00003.gguf": DEMO[i:] for i in (1, 2, 3)}
        self.assertEqual(self.ask()[0], 1)  # these are no parts of one model
        snapshot = self.model / f"snapshots/{COMMIT}/q"
        self.assertEqual(len(list(snapshot.iterdir())), 3)
        self.assertTrue(all(file.exists() for file in snapshot.iterdir()))
        del self.hub.files["q/tiny-Q4_K_M-00002-of-00003.gguf"]
        self.refuses("lacks q/tiny-Q4_K_M-00002-of-00003.gguf")

    def test_folder(self) -> None:
        self.hub.files = {file.name: file.read_bytes() for file in SHARDED.iterdir()}
        self.hub.files |= {"pytorch_model.bin": b"no", "onnx/model.safetensors": b"no", "1_Pooling/config.json": b"{}"}
        code, _, error = self.ask()
        self.assertEqual(code, 1)
        self.assertIn("no tokenizer", error)  # opened, but it has none
        snapshot = self.model / f"snapshots/{COMMIT}"
        found = {str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file()}
        self.assertEqual(found, set(self.hub.files) - {"pytorch_model.bin", "onnx/model.safetensors"})
        self.assertIn("no tokenizer", self.ask(HF_HUB_OFFLINE="1")[2])
        self.found_by_huggingface_hub("1_Pooling/config.json", snapshot / "1_Pooling/config.json")
        (snapshot / "model-00002-of-00002.safetensors").unlink()
        self.refuses("in the cache lacks model-00002-of-00002.safetensors", HF_HUB_OFFLINE="1")

    def test_cut_connections(self) -> None:
        """A download goes on where the connection ended, with ranges and without."""
        self.hub.cuts = [500_000, 300_000]
        self.answers()
        self.assertEqual(self.hub.downloads(), ["", "bytes=500000-", "bytes=800000-"])
        self.blob.unlink()
        self.hub.ranges = False
        self.hub.cuts = [500_000]
        self.answers()

    def test_interrupted(self) -> None:
        """SIGINT keeps what has come; the next call goes on from there."""
        self.hub.cuts = [500_000]
        self.hub.stall.set()
        process = self.start("hf:tiny/model")
        end = time.monotonic() + GUARD_S
        while not self.part.exists() or self.part.stat().st_size < 500_000:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate("", GUARD_S)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(self.part.stat().st_size, 500_000)
        self.hub.stall.clear()
        self.answers()
        self.assertEqual(self.hub.downloads(), ["", "bytes=500000-"])
        self.assertFalse(self.part.exists())

    def test_damage(self) -> None:
        self.hub.damaged = 1
        self.refuses("its checksum is not the one")
        self.assertFalse(self.part.exists() or self.blob.exists())
        # A damaged part of an earlier process is downloaded again.
        self.part.write_bytes(b"x" * 1000)
        self.answers()
        self.assertEqual(self.hub.downloads(), ["", "bytes=1000-", ""])
        # A truncated blob is not used.
        self.blob.write_bytes(DEMO[:1000])
        self.answers()

    def test_wrong_size(self) -> None:
        self.hub.sizes = {"tiny-Q4_K_M.gguf": len(DEMO) - 1}
        self.refuses(f"longer than the {len(DEMO) - 1} bytes")
        self.hub.sizes = {"tiny-Q4_K_M.gguf": len(DEMO) + 1}
        self.refuses(f"shorter than the {len(DEMO) + 1} bytes")
        self.hub.sizes = {"tiny-Q4_K_M.gguf": 1 << 60}
        self.refuses("no space left")

    def test_full_disk(self) -> None:
        self.refuses("File too large", LIMIT="500000")
        self.assertEqual(self.part.stat().st_size, 500_000)
        self.answers()
        self.assertEqual(self.hub.downloads()[-1], "bytes=500000-")

    def test_tokens(self) -> None:
        """A gated model needs a token, which goes to the hub and not to where it redirects."""
        self.hub.token = "secret"
        self.refuses("set HF_TOKEN", "/settings/tokens", "/tiny/model")
        self.refuses("the owner of this token", HF_TOKEN="other")
        self.answers(HF_TOKEN="secret")
        for server, _, headers in self.hub.seen:
            self.assertFalse(server == "storage" and "Authorization" in headers)
        (self.home / "hf").mkdir()
        (self.home / "hf/token").write_text("secret\n")
        self.answers(HF_HOME=str(self.home / "hf"))

    def test_unknown(self) -> None:
        self.refuses("nobody/nothing", "set HF_TOKEN", model="hf:nobody/nothing")
        self.refuses("nobody/nothing: there is none on", model="hf:nobody/nothing", HF_TOKEN="x")
        self.refuses("not in the cache", "HF_HUB_OFFLINE is set", HF_HUB_OFFLINE="1")
        self.refuses("not in the cache", "is not reached", HF_ENDPOINT="http://127.0.0.1:1")
        self.hub.files = {"../up.gguf": b"x", "/etc/x.gguf": b"x"}
        self.refuses("no GGUF and no safetensors files")

    def test_two_at_once(self) -> None:
        self.hub.cuts = [500_000]
        self.hub.stall.set()
        both = [self.start("hf:tiny/model") for _ in range(2)]
        end = time.monotonic() + GUARD_S
        while len([1 for server, path, _ in self.hub.seen if path.startswith("/api/")]) < 2 or not self.hub.downloads():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.hub.stall.clear()
        for process in both:
            out, error = process.communicate("17+25=\n", GUARD_S)
            self.assertEqual((process.returncode, out), (0, "42\n"), error)
        self.assertEqual(self.hub.downloads(), ["", "bytes=500000-"])

    @unittest.skipUnless("BN_SERVER" in os.environ, "BN_SERVER is not set")
    def test_server(self) -> None:
        command = [os.environ["BN_SERVER"], "--port", "0", "--model", "hf:tiny/model"]
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if "serving" in line:
                    server.send_signal(signal.SIGTERM)
        self.assertEqual(server.returncode, 0, said)
        self.assertTrue(any(line.startswith("bn-server: serving bn-demo: ") for line in said), said)
        command[-1] = "hf:nobody/nothing"
        failed = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        self.assertEqual(failed.returncode, 3)
        self.assertIn("nobody/nothing", failed.stderr)


unittest.main()

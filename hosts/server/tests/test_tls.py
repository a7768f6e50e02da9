"""HTTPS, and HTTP/2 with and without TLS. Certificates are made by openssl; frames of HTTP/2 are written by hand, and by curl."""
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
import unittest

from support import LONG, PROGRAM, SLOW, Server, wait_until

CURL = shutil.which("curl")
HAS_H2 = CURL is not None and b"HTTP2" in subprocess.run([CURL, "--version"], capture_output=True).stdout
HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, DATA = 1, 3, 4, 6, 7, 8, 0
INITIAL_WINDOW_SIZE = 4
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def make_certificate(folder):
    key, cert = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key


class Secure(Server):
    """A server with TLS, asked in clear words by its tests."""

    def __init__(self, cert, **options):
        self.context = ssl.create_default_context(cafile=cert)
        super().__init__(tls_cert=cert, **options)

    def connect(self):
        from http.client import HTTPSConnection
        return HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)

    def raw(self, data, room=None):
        s = self.context.wrap_socket(super().raw(b"", room), server_hostname="localhost")
        s.sendall(data)
        return s


@unittest.skipUnless(shutil.which("openssl"), "needs openssl")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cert, cls.key = make_certificate(cls.folder.name)
        cls.server = Secure(cls.cert, tls_key=cls.key, model="builtin:echo", context=1 << 16, receive_timeout=2)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def test_requests_and_streams(self):
        body = {"prompt": "ab", "max_tokens": 50, "ignore_eos": True}
        self.assertEqual(self.server.ok("/v1/completions", body)["usage"]["completion_tokens"], 50)
        self.assertEqual(len(self.server.stream("/v1/completions", body)[-1]["choices"]), 1)
        connection = self.server.connect()
        for _ in range(3):
            connection.request("POST", "/tokenize", json.dumps({"text": "a" * 50000}))
            self.assertEqual(json.loads(connection.getresponse().read())["count"], 50001)
        connection.close()

    def test_protocols(self):
        for offered, chosen in [(["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)]:
            context = ssl.create_default_context(cafile=self.cert)
            if offered:
                context.set_alpn_protocols(offered)
            with socket.create_connection(("127.0.0.1", self.server.port)) as s, context.wrap_socket(s, server_hostname="localhost") as t:
                self.assertEqual(t.selected_alpn_protocol(), chosen)
                self.assertIn(t.version(), ("TLSv1.2", "TLSv1.3"))

    def test_openssl_finds_no_fault(self):
        done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{self.server.port}", "-CAfile", self.cert, "-verify_return_error", "-quiet"],
                              input=b"GET /health HTTP/1.0\r\n\r\n", capture_output=True, timeout=60)
        self.assertIn(b"200 OK", done.stdout, done.stderr)

    def test_words_in_clear(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertNotIn(b"HTTP/1.1 200", s.recv(1000))
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_a_greeting_that_does_not_end(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(b"\x16\x03\x01")
            begin = time.monotonic()
            self.assertEqual(s.recv(100), b"")
            self.assertLess(time.monotonic() - begin, 20)

    def test_hanging_up_cancels(self):
        before = self.server.stats()["cancelled"]
        s = self.server.open_stream(LONG)
        s.close()
        self.server.until(lambda stats: stats["cancelled"] == before + 1 and stats["exchanges"] == 1, "cancel")

    @unittest.skipUnless(HAS_H2, "needs curl with HTTP/2")
    def test_http_2(self):
        done = subprocess.run([CURL, "-sS", "--http2", "--cacert", self.cert, "--parallel", "-w", "%{http_version} %{http_code}\n", "-o", "/dev/null",
                               f"https://localhost:{self.server.port}/health?[1-20]", "--resolve", f"localhost:{self.server.port}:127.0.0.1"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout.splitlines(), ["2 200"] * 20, done.stderr)

    def test_a_certificate_that_is_renewed(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = make_certificate(folder)
            server = Secure(cert, tls_key=key, model="builtin:echo")
            def shown():
                return ssl.get_server_certificate(("127.0.0.1", server.port))
            first = shown()
            make_certificate(folder)
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: shown() != first, "the new one")
            second = shown()
            os.truncate(cert, 0)
            server.process.send_signal(signal.SIGHUP)
            while "the certificate stays as it was" not in server.process.stderr.readline():
                pass
            self.assertEqual(shown(), second)
            server.process.terminate()
            self.assertEqual(server.process.wait(timeout=60), 0)
            server.process.stderr.close()

    def test_files_that_are_wrong(self):
        garbage = os.path.join(self.folder.name, "garbage.pem")
        with open(garbage, "w", encoding="utf-8") as f:
            f.write("nothing")
        for arguments, words in [(["--tls-cert", self.cert], "belong together"), (["--tls-key", self.key], "belong together"),
                                 (["--tls-cert", garbage, "--tls-key", self.key], "garbage.pem"),
                                 (["--tls-cert", self.cert, "--tls-key", garbage], "garbage.pem"),
                                 (["--tls-cert", self.key, "--tls-key", "/nowhere.pem"], "key.pem"),
                                 (["--tls-cert", self.cert, "--tls-key", "/nowhere.pem"], "/nowhere.pem")]:
            done = subprocess.run([PROGRAM, "--port", "0", *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value):
    """A literal of HPACK. Longer ones than 126 bytes are not needed."""
    return bytes([len(value)]) + value.encode()


def head(stream, method, path, end=True, **more):
    fields = {":method": method, ":scheme": "http", ":path": path, ":authority": "localhost", **more}
    block = b"".join(b"\0" + text(name) + text(value) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


class Frames:
    """A client of HTTP/2 that does as it is told."""

    def __init__(self, server, window=65535):
        """`window`: bytes that a stream may send before `widen`."""
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.s = server.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        self.buffer = b""

    def send(self, *frames):
        self.s.sendall(b"".join(frames))

    def post(self, stream, body):
        data = json.dumps(body).encode()
        self.send(head(stream, "POST", "/v1/completions", end=False), frame(DATA, END_STREAM, stream, data))

    def widen(self, stream, more):
        self.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more)))

    def take(self):
        """A frame's kind, flags, stream and payload; None: the connection was closed."""
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            try:
                more = self.s.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            self.buffer += more
        size = int.from_bytes(self.buffer[:3], "big")
        kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big")
        payload, self.buffer = self.buffer[9:9 + size], self.buffer[9 + size:]
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        return kind, flags, stream, payload

    def until(self, condition):
        while True:
            got = self.take()
            assert got is not None
            if condition(*got):
                return got

    def close(self):
        self.s.close()


class Http2(unittest.TestCase):
    def setUp(self):
        self.server = Server(model=SLOW, context=1 << 16, idle_timeout=2, receive_timeout=2)

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def test_streams_beside_each_other(self):
        client = Frames(self.server)
        client.post(1, {"prompt": "abcd", "max_tokens": 1000, "ignore_eos": True, "stream": True})
        client.until(lambda kind, flags, stream, _: kind == DATA and stream == 1)
        client.send(head(3, "GET", "/stats"))
        _, _, _, payload = client.until(lambda kind, flags, stream, _: kind == DATA and stream == 3)
        self.assertEqual(json.loads(payload)["running"], 1)
        client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
        self.server.until(lambda stats: stats["cancelled"] == 1 and stats["exchanges"] == 1, "cancel")
        client.send(head(5, "GET", "/health"))
        client.until(lambda kind, flags, stream, _: kind == DATA and stream == 5)
        client.close()

    def test_hanging_up_cancels_all(self):
        client = Frames(self.server)
        for stream in (1, 3):
            client.post(stream, {**LONG, "stream": stream == 1})
        self.server.until(lambda stats: stats["running"] == 2, "start")
        client.close()
        self.server.until(lambda stats: stats["cancelled"] == 2 and stats["exchanges"] == 1, "cancel")

    def test_streams_that_are_reset_at_once(self):
        client = Frames(self.server)
        try:
            for stream in range(1, 4001, 2):
                client.send(head(stream, "POST", "/tokenize", end=False), frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
            while (got := client.take()) is not None and got[0] != GOAWAY:
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
        client.close()
        self.assertEqual(self.server.get("/health")[0], 200)
        self.server.until(lambda stats: stats["exchanges"] == 1, "the end of all")

    def test_one_that_says_nothing_is_closed(self):
        client = Frames(self.server)
        client.send(head(1, "GET", "/health"))
        begin = time.monotonic()
        while client.take() is not None:
            pass
        self.assertLess(time.monotonic() - begin, 10)
        client.close()

    def test_a_body_that_does_not_end(self):
        client = Frames(self.server)
        client.send(head(1, "POST", "/v1/completions", end=False), frame(DATA, 0, 1, b"{"))
        self.server.until(lambda stats: stats["exchanges"] == 2, "the head is read")
        self.server.until(lambda stats: stats["exchanges"] == 1, "it is given up")
        client.close()

    def test_what_is_refused(self):
        client = Frames(self.server)
        for stream, (path, more) in enumerate([("/a b", {}), ("/health", {":authority": "evil.example"}), ("/nothing", {})]):
            client.send(head(2 * stream + 1, "GET", path, **more))
            kind, _, got, payload = client.until(lambda kind, flags, stream, _: kind in (DATA, RST_STREAM))
            self.assertEqual(got, 2 * stream + 1)
            self.assertTrue(kind == RST_STREAM or b"error" in payload, payload)
        client.close()

    def test_the_end_finishes_what_runs(self):
        # The first answer cannot end before the window is widened.
        client = Frames(self.server, window=1000)
        client.post(1, {"prompt": "abcd", "max_tokens": 50, "ignore_eos": True, "stream": True})
        client.until(lambda kind, flags, stream, _: kind == DATA)
        self.server.process.terminate()
        self.server.until_closed()
        client.send(head(3, "GET", "/v1/models"))
        _, _, _, payload = client.until(lambda kind, flags, stream, _: kind == DATA and stream == 3)
        self.assertIn(b"shutting down", payload)
        client.widen(1, 50000)
        client.until(lambda kind, flags, stream, payload: kind == DATA and stream == 1 and b"[DONE]" in payload)
        client.close()

    @unittest.skipUnless(HAS_H2, "needs curl with HTTP/2")
    def test_curl_in_clear(self):
        url = f"http://localhost:{self.server.port}"
        for version, arguments in [("2", ["--http2-prior-knowledge"]), ("1.1", ["--http2"])]:
            done = subprocess.run([CURL, "-sS", *arguments, "-4", "-N", "-w", "\n%{http_version} %{http_code}", url + "/v1/completions", "-d",
                                   json.dumps({"prompt": "ab", "max_tokens": 20, "stream": True})], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.stdout.splitlines()[-1], version + " 200", done.stderr)
            self.assertIn("[DONE]", done.stdout)

    def test_a_client_that_does_not_read(self):
        client = Frames(self.server)
        for stream in range(1, 9, 2):
            client.post(stream, {"prompt": "ab", "max_tokens": 20000, "ignore_eos": True, "stream": True, "logprobs": 5})
        self.server.until(lambda stats: stats["running"] == 4, "start")
        wait_until(lambda: self.server.stats()["running"] == 0, "cut")  # the windows of HTTP/2 are full
        self.assertEqual(self.server.stats()["exchanges"], 1)
        client.close()


if __name__ == "__main__":
    unittest.main()

"""All that requests pass: names of the machine, keys, paths, logs, signals, hang-ups, and clients that wait."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from support import LONG, PROGRAM, SLOW, Server, ServerTest, read_all, read_until, request, wait_until


def get(path, fields="Host: localhost\r\n"):
    return f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode()


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Paths(ServerTest):
    options = {"model": "builtin:echo"}

    def test_slashes_too_many(self):
        for path in ["/v1/models/", "//v1/models", "/v1//models//", "/health/", "//", "/v1/models/echo/", "/v1/models//echo"]:
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.assertEqual(self.server.post("//v1/completions/", {"prompt": "a", "max_tokens": 1})[0], 200)
        status, data = self.server.post("//v1/messages/", {"max_tokens": "x"})
        self.assertEqual((status, data["type"]), (400, "error"))
        self.assertEqual(self.server.post("/v1/models//", {})[0], 405)

    def test_errors_have_the_shape_of_their_api(self):
        for path, key in [("/v1/nothing", "error"), ("/v1/messages/nothing", "type"), ("/api/nothing", "error")]:
            status, data = self.server.get(path)
            self.assertEqual((status, key in data), (404, True), data)
        self.assertIsInstance(self.server.get("/api/nothing")[1]["error"], str)

    def test_other_methods(self):
        for method, path, status, allow in [("PUT", "/v1/responses/x", 405, "GET, HEAD, DELETE"), ("OPTIONS", "/health", 405, "GET, HEAD"),
                                            ("OPTIONS", "/nothing", 404, None), ("BREW", "/health", 405, "GET, HEAD")]:
            got, headers, _ = self.server.request(method, path)
            self.assertEqual((got, headers["Allow"]), (status, allow), method)

    def test_a_body_that_nobody_reads(self):
        s = self.server.raw(b"DELETE /v1/responses/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}" + get("/health"))
        data = read_until(s, b"ok")
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", data), [b"404", b"200"])
        s.close()


class Names(unittest.TestCase):
    def test_only_names_of_this_machine_without_a_key(self):
        server = Server(model="builtin:echo")
        for host, status in [("localhost", 200), ("LocalHost:80", 200), ("127.0.0.1:1", 200), ("[::1]", 200), ("", 200), ("evil.example", 403),
                             ("localhost.evil.example", 403), ("x", 403),
                             ("host.docker.internal:80", 200), ("a.localhost", 200), ("box.Local", 200), (socket.gethostname(), 200)]:
            for method, path, body in [("GET", "/v1/models", None), ("GET", "/", None), ("POST", "/tokenize", {"text": "a"})]:
                self.assertEqual(server.request(method, path, body, headers={"Host": host})[0], status, host)
        self.assertEqual(server.stop(), 0)

    def test_any_name_with_a_key_or_on_all_addresses(self):
        for options in [{"api_key": "k"}, {"host": "0.0.0.0"}]:
            server = Server(model="builtin:echo", **options)
            self.assertEqual(server.request("GET", "/v1/models", headers={"Host": "any.example", "Authorization": "Bearer k"})[0], 200)
            self.assertEqual(server.stop(), 0)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return path

    def test_keys_of_a_file(self):
        keys = self.path("keys", "# ours\nfirst\n\n  second  \n")
        server = Server(wait=False, model="builtin:echo", api_key_file=keys)
        server.key = "first"

        def statuses():
            names = ["first", "second", "third", "# ours", ""]
            return [server.request("GET", "/v1/models", headers={"Authorization": "bearer " + key})[0] for key in names]

        wait_until(lambda: server.get("/health")[0] == 200, "start")
        self.assertEqual(statuses(), [200, 200, 401, 401, 401])
        self.path("keys", "third\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: statuses() == [401, 401, 200, 401, 401], "the new keys")
        self.path("keys", "\n")  # nobody shall get in by mistake
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        self.assertEqual(statuses(), [401, 401, 200, 401, 401])
        self.assertEqual(server.stop(), 0)
        for path in [keys, self.path("missing")]:
            done = subprocess.run([PROGRAM, "--port", "0", "--api-key-file", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn(path, done.stderr)

    def serve(self, **options):
        """A server whose log is a file, so that the port is found there."""
        log = self.path("log")
        process = subprocess.Popen([PROGRAM, "--port", "0", "--model", "builtin:echo", "--log-file", log, "--access-log",
                                    *[part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]])
        self.addCleanup(process.kill)
        wait_until(lambda: os.path.exists(log) and "serving" in read(log), "start")
        server = Server.__new__(Server)
        server.process, server.key = process, None
        server.port = int(re.search(r"port (\d+)", read(log)).group(1))
        return server, log

    def test_a_log_that_is_moved_away(self):
        server, log = self.serve()
        server.ok("/v1/completions", {"prompt": "a", "max_tokens": 2})
        server.get("/v1/models/%1b%5b31m%e2%80%ae")
        wait_until(lambda: read(log).count("status=") >= 2, "two lines")
        first, second = [line for line in read(log).splitlines() if "status=" in line][:2]
        self.assertRegex(first, r"^\d{4}-\d\d-\d\dT\S+Z bn-server: peer=127.0.0.1 method=POST path=/v1/completions status=200 bytes=\d+ ms=\d+ model=echo$")
        self.assertIn("status=404", second)
        self.assertNotIn("\x1b", read(log))
        os.rename(log, log + ".1")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: os.path.exists(log), "the new file")
        server.get("/health")
        wait_until(lambda: "path=/health" in read(log), "its line")
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=60), 0)
        self.assertIn("finishing", read(log))

    @unittest.skipUnless(os.path.exists("/dev/full"), "Linux alone has it")
    def test_a_log_that_cannot_be_written(self):
        for options in ({}, {"log_file": "/dev/full"}, {"log_format": "json"}):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            reader, writer = os.pipe()
            errors = open("/dev/full", "w", encoding="utf-8") if not options else writer
            arguments = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]
            process = subprocess.Popen([PROGRAM, "--port", str(port), "--model", "builtin:echo", "--access-log", *arguments], stderr=errors)
            self.addCleanup(process.kill)
            os.close(writer)
            server = Server.__new__(Server)
            server.process, server.key, server.port = process, None, port
            if options.get("log_format"):
                self.assertTrue(os.read(reader, 1))
                os.close(reader)  # as head -1 does

            def answers():
                try:
                    return server.get("/health")[0] == 200
                except ConnectionRefusedError:
                    return process.poll() is not None
            wait_until(answers, "start")
            for _ in range(3):
                server.ok("/v1/completions", {"prompt": "a", "max_tokens": 2})
            process.terminate()
            self.assertEqual(process.wait(timeout=60), 0)
            if "log_file" in options:
                self.assertEqual(os.read(reader, 100), b"")  # nor a complaint about each line
            if not options.get("log_format"):
                os.close(reader)
            if not options:
                errors.close()

    def test_a_log_for_programs(self):
        server, log = self.serve(log_format="json")
        stream = server.open_stream({"prompt": "a", "max_tokens": 2})
        self.assertIn(b"[DONE]", read_until(stream, b"0\r\n\r\n"))
        stream.close()
        wait_until(lambda: '"status":200' in read(log), "the line")
        lines = [json.loads(line) for line in read(log).splitlines()]
        line = next(line for line in lines if line.get("status"))
        self.assertEqual((line["path"], line["model"], line["level"]), ("/v1/completions", "echo", "INFO"))
        self.assertGreater(line["bytes"], 50)
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=60), 0)


class Start(unittest.TestCase):
    def test_without_the_standard_descriptors(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", PROGRAM, "--port", str(port), "--model", "builtin:echo"])
        self.addCleanup(process.kill)
        server = Server.__new__(Server)
        server.process, server.port, server.key = process, port, None

        def answers():
            try:
                return server.get("/health")[0] == 200
            except OSError:
                return False

        wait_until(answers, "start")
        for fd in ("0", "1", "2"):  # no socket and no file of a model
            self.assertEqual(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null")
        process.terminate()
        self.assertEqual(process.wait(timeout=60), 0)

    def test_a_port_that_is_taken(self):
        server = Server(model="builtin:echo")
        done = subprocess.run([PROGRAM, "--port", str(server.port), "--model", "builtin:echo"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"cannot listen on 127.0.0.1 port {server.port}", done.stderr)
        self.assertEqual(server.stop(), 0)

    def test_completions_for_shells(self):
        done = subprocess.run([PROGRAM, "--completions", "bash"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertIn("--max-batch", done.stdout)


class Strict(unittest.TestCase):
    def test_unknown_fields(self):
        for strict, status in [("0", 200), ("1", 400)]:
            server = Server(model="builtin:echo", strict=strict)
            got, data = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "unheard_of": 1, "not_set": None})
            self.assertEqual(got, status, data)
            if strict == "1":
                self.assertEqual(data["error"]["message"], "'unheard_of' is not a field of this request")
            else:
                self.assertEqual(server.metrics()["bn_server_ignored_fields_total"], 1)
            self.assertEqual(server.stop(), 0)


class Waiting(unittest.TestCase):
    def closed_after(self, s):
        begin = time.monotonic()
        self.assertEqual(s.recv(100), b"")
        s.close()
        return time.monotonic() - begin

    def test_clients_that_say_nothing(self):
        server = Server(model="builtin:echo", receive_timeout=2, idle_timeout=1)
        fresh = server.raw(b"")
        used = server.raw(get("/health"))
        read_until(used, b"ok")
        self.assertLess(self.closed_after(used), 1.9)
        self.assertLess(self.closed_after(fresh), 3)
        self.assertEqual(server.stop(), 0)

    def test_requests_that_come_slowly_have_one_time(self):
        server = Server(model="builtin:echo", receive_timeout=1, idle_timeout=60)
        s = server.raw(get("/health"))
        read_until(s, b"ok")
        time.sleep(1.5)  # between two requests it may take longer
        for byte in get("/health")[:-10]:
            s.send(bytes([byte]))
        self.assertLess(self.closed_after(s), 3)
        s = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        self.assertIn(b" 408 ", s.recv(1000))
        s.close()
        self.assertEqual(server.stop(), 0)

    def test_closing_one_side_cancels(self):
        server = Server(model=SLOW, context=1 << 16)
        for behind in [b"", get("/health"), b"x" * 100000]:  # what is there to be read hides no end
            for stream in [True, False]:
                s = server.raw(request("/v1/completions", json.dumps({**LONG, "stream": stream})))
                server.until(lambda stats: stats["running"] == 1, "start")
                s.sendall(behind)
                s.shutdown(socket.SHUT_WR)
                server.until(lambda stats: stats["running"] == 0, "cancel")
                s.close()
        self.assertEqual(server.stats()["cancelled"], 6)
        self.assertEqual(server.stop(), 0)

    def test_closing_one_side_behind_what_is_answered_at_once(self):
        server = Server(model="builtin:echo")
        s = server.raw(get("/health") * 100 + request("/tokenize", json.dumps({"text": "a"})))
        s.shutdown(socket.SHUT_WR)
        self.assertEqual(read_all(s).count(b"HTTP/1.1 200"), 101)
        self.assertEqual(server.stop(), 0)

    def test_an_answer_that_is_read_slowly_is_given_time(self):
        server = Server(model="builtin:echo", idle_timeout=1)
        s = server.raw(request("/tokenize", json.dumps({"text": "ab " * 300000})), room=4096)
        data = b""
        end = time.monotonic() + 3
        while time.monotonic() < end:  # some 40 KiB in a second
            data += s.recv(2048)
            time.sleep(0.05)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        length = int(re.search(rb"Content-Length: (\d+)", data).group(1))
        data = data.partition(b"\r\n\r\n")[2]
        while len(data) < length:
            more = s.recv(1 << 20)
            self.assertTrue(more, (len(data), length))
            data += more
        s.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

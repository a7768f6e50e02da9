"""A server for a test, and requests to it. Python's standard library alone."""
import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
PROGRAM = os.environ.get("BN_SERVER", os.path.join(ROOT, "target", "c", "bn-server"))
SLOW = "builtin:echo?us_per_token=2000"
LONG = {"prompt": "abcdefgh", "max_tokens": 60000, "ignore_eos": True}  # two minutes of it


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Server:
    """bn-server on a free port, with options as keywords: max_batch=4 is --max-batch 4."""

    def __init__(self, wait=True, environment=None, **options):
        arguments = [PROGRAM, "--port", "0"]
        for name, value in options.items():
            arguments += ["--" + name.replace("_", "-"), str(value)]
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        atexit.register(self.process.kill)  # of a test that failed
        line = self.process.stderr.readline()
        found = re.search(r"port (\d+)", line)
        if not found:
            raise AssertionError("no port: " + line)
        self.port = int(found.group(1))
        self.key = options.get("api_key")
        while wait and self.get("/health")[0] != 200:
            time.sleep(0.01)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(self, method, path, body=None, headers=None, parse=True):
        """Status, headers and body; a JSON body is parsed."""
        connection = self.connect()
        headers = dict(headers or {})
        if self.key and "Authorization" not in headers:
            headers["Authorization"] = "Bearer " + self.key
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if parse and response.getheader("Content-Type") == "application/json":
            data = json.loads(data)
        return response.status, response.headers, data

    def get(self, path, **more):
        status, _, data = self.request("GET", path, **more)
        return status, data

    def post(self, path, body, **more):
        status, _, data = self.request("POST", path, body, **more)
        return status, data

    def ok(self, path, body):
        status, data = self.post(path, body)
        if status != 200:
            raise AssertionError(f"{path}: {status} {data}")
        return data

    def stream(self, path, body):
        """The objects of an event stream, without [DONE], which must be its last event."""
        data = self.ok(path, {**body, "stream": True}).decode()
        events = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", data
        return [json.loads(event) for event in events[:-1]]

    def open_stream(self, body, path="/v1/completions"):
        """A socket on which a stream has begun."""
        s = self.raw(request(path, json.dumps({**body, "stream": True})))
        assert b"200 OK" in s.recv(1 << 16)
        return s

    def raw(self, data, room=None):
        """A socket on which data was sent. `room`: bytes that it receives before they are read."""
        s = socket.socket()
        s.settimeout(60)
        if room:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        try:
            s.connect(("127.0.0.1", self.port))
            s.sendall(data)
        except OSError:
            s.close()
            raise
        return s

    def stats(self):
        return self.get("/stats")[1]

    def metrics(self):
        """The values of the metrics, by name and labels."""
        lines = [line for line in self.get("/metrics")[1].decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def until(self, condition, what, seconds=60):
        """Waits until a condition of the statistics holds."""
        wait_until(lambda: condition(self.stats()), what, seconds)

    def until_closed(self):
        """Waits until the server accepts no connection."""
        while True:
            try:
                self.raw(b"").close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # it was in the line when the socket was closed

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.process.stderr.close()
        return code


def request(path, body):
    body = body.encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def read_all(s):
    data = b""
    while True:
        try:
            more = s.recv(1 << 16)
        except ConnectionResetError:
            more = b""
        if not more:
            s.close()
            return data
        data += more


def read_until(s, mark):
    data = b""
    while mark not in data:
        more = s.recv(1 << 16)
        assert more, data
        data += more
    return data


class ServerTest(unittest.TestCase):
    """Tests that share a server, which has `options`."""

    options = {}

    @classmethod
    def setUpClass(cls):
        cls.server = Server(**cls.options)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def refused(self, path, body, words, status=400):
        got, data = self.server.post(path, body)
        self.assertEqual(got, status, data)
        self.assertIn(words, data["error"]["message"])
        self.assertEqual(set(data["error"]), {"message", "type", "param", "code"})

    def named(self, path, body):
        """The data of an event stream with names, which are also their types."""
        events = [event.split("\n") for event in self.server.ok(path, {**body, "stream": True}).decode().strip().split("\n\n")]
        parsed = [json.loads(lines[1][6:]) for lines in events]
        self.assertEqual([lines[0][7:] for lines in events], [event["type"] for event in parsed])
        return parsed

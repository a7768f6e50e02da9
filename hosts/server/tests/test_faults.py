"""Clients that are wrong, slow, gone or too many, and the end of the server."""
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import time
import unittest

from support import LONG, PROGRAM, SLOW, Server, ServerTest, read_all, read_until, request


def resident(server):
    """MiB."""
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


class Http(ServerTest):
    options = {"model": "builtin:echo", "context": 4096, "max_body": 65536, "max_header": 8192, "max_depth": 16, "max_items": 1000}

    def test_malformed_http(self):
        for data in [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00\xff\xfe" * 50 + b"\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"GET / HTTP/1.1\r\n\r\n"]:
            with self.subTest(data):
                s = self.server.raw(data)
                s.shutdown(socket.SHUT_WR)
                self.assertFalse(read_all(s).startswith(b"HTTP/1.1 200"))
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_unknown_routes_and_methods(self):
        self.assertEqual(self.server.get("/nothing")[0], 404)
        self.assertEqual(self.server.get("/v1/completions")[0], 405)
        self.assertEqual(self.server.post("/health", {})[0], 405)

    def test_a_long_header_is_refused(self):
        status, _, _ = self.server.request("GET", "/health", headers={"X-Long": "x" * 20000})
        self.assertIn(status, (413, 431))

    def test_a_large_body_is_refused_before_it_is_sent(self):
        s = self.server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n\r\n")
        self.assertIn(b" 413 ", s.recv(4096))
        s.close()

    def test_a_large_body_in_chunks_is_refused(self):
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        s = self.server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 40 + b"0\r\n\r\n")
        self.assertIn(b" 413 ", s.recv(4096))
        s.close()

    def test_bad_json(self):
        nested = '{"prompt":' + "[" * 20 + "]" * 20 + "}"
        for body, words in [("", "not valid JSON"), ("{", "not valid JSON"), ('{"prompt":"x"} x', "not valid JSON"), ("[]", "JSON object"),
                            ("]", "not valid JSON"), ('{"prompt":"x', "not valid JSON"), ('{"prompt":"a\0b"}', "NUL"),
                            (nested, "nested too deeply"), ('{"prompt":[' + "1," * 2000 + "1]}", "too many values")]:
            with self.subTest(body[:30]):
                self.refused("/v1/completions", body, words)
        self.refused("/v1/completions", b'{"prompt":"\xff\xfe"}', "UTF-8")

    def test_half_a_character_is_replaced(self):
        body = '{"text": "a\\ud83d", "prompt": "a\\ud83d"}'
        self.assertEqual(self.server.ok("/tokenize", body), self.server.ok("/tokenize", {"text": "a\ufffd", "prompt": "a\ufffd"}))

    def test_pages_of_other_sites_are_refused(self):
        own = {"Origin": f"http://127.0.0.1:{self.server.port}"}
        self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 2}, own)[0], 200)
        for origin in ("http://evil.example", "null", "https://127.0.0.1"):
            self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "ab"}, {"Origin": origin})[0], 403)
        # A name of another site that leads to this machine.
        for host, status in [("localhost", 200), ("[::1]:80", 200), ("evil.example:80", 403), ("localhost.evil.example", 403), ("1.evil.example", 403)]:
            headers = {"Origin": f"http://{host}", "Host": host}
            self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 2}, headers)[0], status, host)

    def test_bodies_that_were_changed_at_random(self):
        dice = random.Random(1)
        chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\\u00e9\\ud83d\\ude00"}]}], "stop": ["x", "y"], "stream": False,
                "max_tokens": 3, "seed": -1, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}
        plain = {"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 3, "top_p": 0.5, "session": "s", "priority": 1}
        connection = self.server.connect()
        for turn in range(600):
            path, body = [("/v1/chat/completions", chat), ("/v1/completions", plain), ("/generate/batch", {"prompts": ["a", [5]], "max_tokens": 3, "n": 2}),
                          ("/v1/responses", {"input": chat["messages"]}), ("/v1/messages", chat)][turn % 5]
            data = bytearray(json.dumps(body).replace("\\\\u", "\\u").encode())
            for _ in range(dice.randrange(4)):
                at = dice.randrange(len(data))
                data[at:at + dice.randrange(3)] = dice.choice([b"", b'"', b"{", b"[", b"]", b"}", b",", b"null", b"-1e9", b"\xff", b"\\", b"\x00", b"1e999"])
            connection.request("POST", path, bytes(data))
            response = connection.getresponse()
            self.assertIn(response.status, (200, 400, 429), data)
            response.read()
        connection.close()

    def test_a_connection_is_used_again(self):
        connection = self.server.connect()
        for body in ["{", json.dumps({"prompt": "ab", "max_tokens": 4}), "{"]:
            connection.request("POST", "/v1/completions", body)
            response = connection.getresponse()
            self.assertEqual(response.status, 400 if body == "{" else 200)
            response.read()
        connection.close()

    def test_two_requests_in_one_packet(self):
        data = request("/v1/completions", json.dumps({"prompt": "ab", "max_tokens": 4}))
        s = self.server.raw(data + data)
        got = b""
        while got.count(b"HTTP/1.1 200") < 2:
            got += read_until(s, b"\n")
        s.close()

    def test_a_body_in_small_pieces(self):
        data = request("/v1/completions", json.dumps({"prompt": "ab", "max_tokens": 4}))
        s = self.server.raw(b"")
        for byte in data:
            s.send(bytes([byte]))
        self.assertIn(b" 200 ", s.recv(4096))
        s.close()


class Hang(unittest.TestCase):
    def setUp(self):
        self.server = Server(model=SLOW, context=1 << 16)

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def test_a_hang_up_in_a_stream_cancels(self):
        s = self.server.open_stream({**LONG, "n": 2})
        self.server.until(lambda stats: stats["running"] == 2, "start")
        s.close()
        self.server.until(lambda stats: stats["cancelled"] == 2 and stats["unreleased"] == 0, "cancel")
        self.server.until(lambda stats: stats["exchanges"] == 1, "the exchange's end")

    def test_a_hang_up_before_the_answer_cancels(self):
        s = self.server.raw(request("/v1/completions", json.dumps(LONG)))
        self.server.until(lambda stats: stats["running"] == 1, "start")
        s.close()
        self.server.until(lambda stats: stats["cancelled"] == 1 and stats["exchanges"] == 1, "cancel")

    def test_a_client_that_does_not_read_is_cut_off(self):
        self.server.stop()
        self.server = Server(model="builtin:echo", max_unread=4096)
        s = self.server.raw(request("/v1/completions", json.dumps({**LONG, "stream": True, "logprobs": 5})), room=4096)
        self.server.until(lambda stats: stats["cancelled"] == 1, "cut")
        s.close()


class LongBodies(unittest.TestCase):
    """Threads submit and tokenize these."""

    PADDING = {"user": "x" * 20000}

    def test_they_are_answered_as_short_ones(self):
        server = Server(model="builtin:echo")
        for body in [{"prompt": ["abcdefgh", "ijkl"], "n": 2, "seed": 1}, {"prompt": "a" * 70000}, {"prompt": [999]}]:
            body = {"max_tokens": 8, "temperature": 0.5, **body}
            (status, short), (long_status, long) = (server.post("/v1/completions", {**body, **more}) for more in ({}, self.PADDING))
            self.assertEqual((status, short.get("choices"), short.get("error")), (long_status, long.get("choices"), long.get("error")))
        chat = {"messages": [{"role": "user", "content": "b" * 20000}], "max_tokens": 8, "temperature": 0}
        text = server.ok("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
        self.assertEqual(text, "user: bb")
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in server.stream("/v1/chat/completions", chat)), text)
        status, data = server.post("/v1/completions", {"prompt": "a" * 70000, "stream": True})
        self.assertEqual((status, data["error"]["code"]), (400, "context_length_exceeded"))
        self.assertEqual(server.ok("/tokenize", {"text": "c" * 300000})["count"], 300001)
        pairs = {"query": "q", "documents": ["a", "bc"]}
        results = [server.ok("/v1/rerank", {**pairs, **more})["results"] for more in ({}, self.PADDING)]
        self.assertEqual(results[0], results[1])
        status, data = server.post("/v1/rerank", {**pairs, "documents": ["a" * 300000] * 3})
        self.assertEqual((status, data["error"]["code"]), (400, "context_length_exceeded"))
        chat = {"messages": chat["messages"]}
        scored = server.ok("/v1/chat/completions", {**chat, "max_tokens": 1, "prompt_logprobs": 0})
        self.assertEqual(len(scored["prompt_logprobs"]), scored["usage"]["prompt_tokens"])
        self.assertEqual(server.ok("/v1/messages/count_tokens", chat)["input_tokens"], server.ok("/tokenize", chat)["count"])
        self.assertEqual(server.stop(), 0)

    def test_clients_that_hang_up_meanwhile(self):
        server = Server(model="builtin:echo?us_per_token=10", context=1 << 16)
        for turn in range(60):
            path, body = [("/tokenize", {"text": "a" * 1000000}), ("/v1/completions", {"prompt": "a" * 60000, "n": 3}),
                          ("/v1/completions", {**LONG, **self.PADDING, "stream": True}),
                          ("/v1/rerank", {"query": "q", "documents": ["a" * 9000] * 6, "return_documents": True}),
                          ("/v1/completions", {"prompt": "a" * 30000, "prompt_logprobs": 1})][turn % 5]
            s = server.raw(request(path, json.dumps(body)))
            if turn % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
            time.sleep(turn % 5 / 500)
            s.close()
        server.until(lambda stats: (stats["exchanges"], stats["working"], stats["unreleased"]) == (1, 0, 0), "the end of all")
        self.assertEqual(server.stop(), 0)

    def test_the_end_of_the_server_meanwhile(self):
        dice = random.Random(1)
        text = " ".join("".join(dice.choices("abcdefghij", k=9)) for _ in range(60000))
        for signals, statuses in [(1, ["200"]), (2, ["200", "503"])]:  # 200: it was done before the second
            server = Server()
            sockets = [server.raw(request("/tokenize", json.dumps({"text": text}))) for _ in range(10)]  # for two threads
            sockets.append(server.raw(request("/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 5, **self.PADDING}))))
            server.until(lambda stats: stats["working"] > 2 or select.select(sockets[-1:], [], [], 0)[0], "all at work")
            server.process.terminate()
            server.until_closed()
            if signals == 2:
                server.process.terminate()
            self.assertIn(b" 200 ", sockets[0].recv(100))
            self.assertIn(sockets[-1].recv(100).decode().split()[1], statuses)
            for s in sockets:
                s.close()
            self.assertEqual(server.stop(), 0)


class Limits(unittest.TestCase):
    def test_a_deep_and_a_large_body(self):
        server = Server(model="builtin:echo")
        for depth in (14, 100):
            schema = {"type": "string"}
            for _ in range(depth // 2):
                schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            body = {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "max_tokens": 2}
            status, data = server.post("/v1/chat/completions", body)
            self.assertIn(status, (200,) if depth == 14 else (200, 400), data)
            self.assertTrue(status == 200 or data["error"]["message"])
        status, data = server.post("/v1/chat/completions", '{"messages": %s}' % ("[" * 200 + "]" * 200))
        self.assertEqual((status, "nested too deeply" in data["error"]["message"]), (400, True), data)
        turns = [{"role": "user", "content": [{"type": "text", "text": "a"},
                                              {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (6 << 20)}}]},
                 {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        self.assertEqual(server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 2})[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_full_queue(self):
        server = Server(model=SLOW, context=1 << 16, queue=2)
        streams = [server.open_stream(LONG) for _ in range(2)]
        status, headers, data = server.request("POST", "/v1/completions", LONG)
        self.assertEqual((status, headers["Retry-After"]), (429, "1"))
        self.assertEqual(data["error"]["type"], "rate_limit_error")
        self.assertEqual(server.post("/v1/completions", {**LONG, "n": 3})[0], 400)
        for s in streams:
            s.close()
        server.until(lambda stats: stats["unreleased"] == 0, "release")
        self.assertEqual(server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_timeout(self):
        server = Server(model=SLOW, context=1 << 16)
        data = server.ok("/v1/completions", {**LONG, "timeout_ms": 200})
        self.assertEqual(data["choices"][0]["finish_reason"], "timed_out")
        self.assertEqual(server.stop(), 0)

    def test_a_request_that_trickles_is_cut_off(self):
        server = Server(model="builtin:echo", receive_timeout=1)
        for first in [b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"]:
            s = server.raw(first)
            end = time.monotonic() + 30
            with self.assertRaises(OSError):
                while time.monotonic() < end:  # each byte alone is in time
                    s.send(b"x")
                    time.sleep(0.05)
            s.close()
        self.assertEqual(server.get("/health")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_the_key(self):
        server = Server(wait=False, model="builtin:echo", environment={"BN_API_KEY": "secret"})
        while server.get("/health")[0] != 200:
            time.sleep(0.01)
        for headers in [{}, {"Authorization": "Bearer "}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secretsecret"}, {"Authorization": "secret"}]:
            status, answer, data = server.request("GET", "/v1/models", headers=headers)
            self.assertEqual((status, data["error"]["code"]), (401, "invalid_api_key"))
        for headers in [{"Authorization": "Bearer secret"}, {"x-api-key": "secret"}]:
            self.assertEqual(server.request("GET", "/v1/models", headers=headers)[0], 200)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x"})[0], 401)
        self.assertEqual(server.stop(), 0)

    def test_500_streams_and_flat_memory(self):
        server = Server(model="builtin:echo", max_batch=64, max_connections=600)

        def round_of_streams():
            sockets = [server.raw(request("/v1/completions", json.dumps({"prompt": "abcdefgh", "max_tokens": 200, "ignore_eos": True, "no_cache": True, "stream": True}))) for _ in range(500)]
            for s in sockets:
                self.assertIn(b"[DONE]", read_until(s, b"0\r\n\r\n"))
                s.close()

        # Buffers reach their final sizes sooner or later, and the allocator's free memory fluctuates. Four rounds in a row
        # without growth happen only if nothing leaks: 500 bytes per stream would be 1 MiB in four rounds.
        sizes = []
        while len(sizes) < 5 or max(sizes[-4:]) > max(sizes[:-4]) + 1:
            self.assertLess(len(sizes), 40, sizes)
            round_of_streams()
            sizes.append(resident(server))
        self.assertEqual(server.stats()["generated_tokens"], len(sizes) * 500 * 200)
        self.assertEqual(server.stop(), 0)


class End(unittest.TestCase):
    def test_a_signal_finishes_what_runs(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server(model=SLOW, context=1 << 16)
            streams = [server.open_stream({**LONG, "max_tokens": 50}) for _ in range(4)]
            holder = server.open_stream(LONG)  # nothing ends before it has hung up
            idle = server.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            server.process.send_signal(number)
            server.until_closed()
            idle.request("POST", "/v1/completions", json.dumps(LONG))
            self.assertEqual(idle.getresponse().status, 503)
            for s in streams:
                read_until(s, b"[DONE]")
                s.close()
            holder.close()
            self.assertEqual(server.stop(), 0)

    def test_a_second_signal_cancels(self):
        server = Server(model=SLOW, context=1 << 16)
        s = server.open_stream(LONG)
        server.until(lambda stats: stats["generated_tokens"] > 0, "start")
        server.process.send_signal(signal.SIGTERM)
        server.until_closed()
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(b'"finish_reason":"cancelled"', read_all(s))
        self.assertEqual(server.stop(), 0)

    def run_program(self, *arguments, **environment):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def test_options(self):
        code, out, _ = self.run_program("--help")
        self.assertEqual(code, 0)
        options = {text.split()[0]: re.findall(r"\[env:\s+([A-Z_]+)\]", text) for text in re.split(r"^ {6}--", out, flags=re.M)[1:]}
        self.assertIn("max-batch", options)
        for name, variables in options.items():
            self.assertEqual(variables, [] if name in ("completions", "version") else ["BN_" + name.upper().replace("-", "_")])
        self.assertIn("bn-server", self.run_program("--version")[1])
        for arguments, words in [(["--wrong", "1"], "unknown option"), (["--port"], "needs a value"), (["--port", "x"], "from 0 to 65535"), (["--max-batch", "5000"], "4096"),
                                 (["--speculation", "yes"], "must be off, lookup or draft"),
                                 (["--api-key="], "--api-key needs a value"), (["--cors", "https://a.example/"], "must be * or origins"),
                                 (["--adapters", "x"], "must be NAME=PATH"), (["--device", "gpu"], "must be cpu"), (["--speculation", "draft"], "needs --draft-model"),
                                 (["--kv-type", "int2"], "must be f16, f32, int8 or int4")]:
            code, _, error = self.run_program(*arguments)
            self.assertEqual(code, 2)
            self.assertIn(words, error)
            self.assertEqual(error.count("\n"), 1)
        code, _, error = self.run_program(BN_MAX_BATCH="many")
        self.assertEqual(code, 2)
        self.assertIn("BN_MAX_BATCH must be a number", error)
        for name in ("BN_API_KEY", "BN_API_KEY_FILE"):
            code, _, error = self.run_program(**{name: ""})
            self.assertEqual((code, error), (2, f"bn-server: {name} needs a value\n"))

    @unittest.skipUnless(os.path.exists("/dev/full"), "Linux alone has it")
    def test_output_that_cannot_be_written(self):
        for arguments in (["--version"], ["--help"], ["--completions", "bash"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                self.assertEqual(subprocess.run([PROGRAM, *arguments], stdout=full, timeout=60).returncode, 1)

    def test_addresses(self):
        for host, warned in [("[::1]", False), ("0.0.0.0", True)]:
            process = subprocess.Popen([PROGRAM, "--port", "0", "--model", "builtin:echo", "--host", host], stderr=subprocess.PIPE, text=True)
            lines = [process.stderr.readline() for _ in range(2)]
            self.assertIn(f"listening on {host}", lines[0])
            self.assertEqual("it has no key" in lines[1], warned, lines)
            process.terminate()
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)

    def test_what_cannot_start(self):
        code, _, error = self.run_program("--port", "0", "--model", "/nowhere.gguf")
        self.assertEqual(code, 3)
        self.assertIn("/nowhere.gguf", error)
        self.assertEqual(self.run_program("--host", "203.0.113.1")[0], 1)


if __name__ == "__main__":
    unittest.main()

"""Clients that try to deny service to others: attacks on the listener, the memory, the threads and the end of the server. With
ATTACK_SECONDS in the environment, the attack on the listener lasts that long and reports its counts."""
import json
import os
import resource
import select
import signal
import socket
import threading
import time
import unittest

from support import LONG, SLOW, Server, read_all, request, wait_until

SECONDS = float(os.environ.get("ATTACK_SECONDS", "0"))


def peak(server):
    """MiB that were resident at most."""
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024


def counted(server):
    """Bytes of --max-memory."""
    return server.metrics()["bn_server_memory_bytes"]


def unread(server, s):
    """Bytes that the kernel has for the server's end of a connection."""
    ports = [f":{port:04X}" for port in (server.port, s.getsockname()[1])]
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f]
    return next(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(ports[0]) and row[2].endswith(ports[1]))


def hold(server, count, data=b"", room=None):
    """Connections that say nothing more."""
    return [server.raw(data, room) for _ in range(count)]


def close_all(sockets):
    for s in sockets:
        s.close()


def at_once(server, data):
    """A socket on which data was sent before the server may close it for another (FRESH in src/serve/pool.rs)."""
    fresh = 0.02
    for _ in range(300):
        begin = time.monotonic()
        try:
            s = server.raw(data)
        except ConnectionError:
            if time.monotonic() < begin + fresh:
                raise
            continue
        if time.monotonic() < begin + fresh:
            return s
        s.close()
    raise unittest.SkipTest("this machine is too slow to send a request within 20 ms")


class Listener(unittest.TestCase):
    def attack(self, server, count):
        """Waves of idle connections, each as many as the server takes and more, and /health beside them."""
        begin, made, answered, longest, rounds = time.monotonic(), 0, 0, 0.0, 0
        while rounds < 3 or time.monotonic() < begin + SECONDS:
            data = [b"", b"GET /hea", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"][rounds % 3]
            held = hold(server, count, data)
            made += len(held)
            pause = time.monotonic() + (2.5 if rounds % 4 == 0 else 0.2)  # until all expire in one turn, or are closed at once
            while True:
                asked = time.monotonic()
                self.assertEqual(server.get("/health"), (200, {"status": "ok"}))
                longest = max(longest, time.monotonic() - asked)
                answered += 1
                if time.monotonic() > pause:
                    break
                time.sleep(0.05)
            close_all(held)
            rounds += 1
        if SECONDS:
            print(f"\n{made} connections in {time.monotonic() - begin:.0f} s, /health answered {answered} times, at most {longest * 1000:.0f} ms")

    def test_idle_connections_that_expire_together(self):
        server = Server(model="builtin:echo", max_connections=100, receive_timeout=1, idle_timeout=1)
        self.attack(server, 130)
        self.assertEqual(server.stop(), 0)

    def test_as_many_connections_as_there_may_be_by_default(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(4096, soft), hard), hard))
        server = Server(model="builtin:echo", receive_timeout=1, idle_timeout=1)
        for _ in range(2):
            held = hold(server, 1100)
            self.assertEqual(server.get("/health")[0], 200)
            time.sleep(2.5)
            self.assertEqual(server.get("/health")[0], 200)
            close_all(held)
        self.assertEqual(server.stop(), 0)

    def test_few_descriptors(self):
        server = Server(model="builtin:echo", receive_timeout=1, idle_timeout=1)
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        self.attack(server, 50)
        self.assertEqual(server.stop(), 0)

    def test_new_connections_are_read_before_they_make_room(self):
        server = Server(model="builtin:echo")
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        over = threading.Event()

        def flood():
            held = []
            while not over.is_set():
                held += hold(server, 1)
                if len(held) > 100:
                    held.pop(0).close()
            close_all(held)

        floods = [threading.Thread(target=flood) for _ in range(2)]
        for one in floods:
            one.start()
        try:
            for _ in range(300):
                asks = at_once(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                self.assertIn(b" 200 ", read_all(asks))
        finally:
            over.set()
            for one in floods:
                one.join()
        self.assertEqual(server.stop(), 0)

    def test_no_descriptor_at_all_for_a_while(self):
        server = Server(model=SLOW, context=1 << 16)
        stream = server.open_stream(LONG)
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        fds = f"/proc/{server.process.pid}/fd"
        while True:  # until no descriptor below the limit was closed after the limit was chosen
            used = {int(fd) for fd in os.listdir(fds)}
            lowest = next(fd for fd in range(len(used) + 1) if fd not in used)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (lowest, most))  # the stream is not closed for others
            waits = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            waits.settimeout(0.3)
            try:
                self.assertIn(b" 200 ", waits.recv(100))
                waits.close()
            except TimeoutError:
                break
        self.assertIn(b"data: ", stream.recv(1 << 16))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
        waits.settimeout(60)
        self.assertIn(b" 200 ", waits.recv(100))
        waits.close()
        stream.close()
        self.assertEqual(server.stop(), 0)

    def test_the_state_is_told_where_all_connections_are_in_use(self):
        server = Server(model=SLOW, context=1 << 16, max_connections=4)
        streams = [server.open_stream(LONG) for _ in range(4)]
        self.assertEqual(server.get("/health")[0], 200)
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "a"})
        self.assertEqual((status, headers["Retry-After"], headers["Connection"]), (503, "1", "close"))
        close_all(streams)
        self.assertEqual(server.stop(), 0)

    def test_an_answer_that_is_not_read_is_given_up(self):
        server = Server(model="builtin:echo", idle_timeout=1, context=1 << 16)
        s = server.raw(request("/tokenize", json.dumps({"text": "ab " * 1000000})), room=4096)
        self.assertEqual(s.recv(1), b"H")
        server.until(lambda stats: stats["exchanges"] == 1, "end")
        self.assertNotEqual(read_all(s)[-1:], b"}")  # not to its end
        self.assertEqual(server.stop(), 0)


class Memory(unittest.TestCase):
    LIMIT = 24

    def serve(self, **more):
        options = {"max_memory": self.LIMIT << 20, "model": "builtin:echo", "receive_timeout": 300, "max_body": 4 << 20, **more}
        server = Server(**options)
        return server, peak(server)

    def test_bodies(self):
        server, before = self.serve()
        body = b"x" * ((4 << 20) - 100)
        held = hold(server, 40)
        for s in held:  # 160 MiB
            try:
                s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (4 << 20) + body)
            except (BrokenPipeError, ConnectionResetError):
                pass
        answered = {}
        while len(answered) <= 30:
            ready = select.select(set(held) - set(answered), [], [], 60)[0]
            self.assertTrue(ready, f"{len(answered)} answers")
            answered.update((s, s.recv(400)) for s in ready)
        for answer in answered.values():
            self.assertIn(b" 503 ", answer)
            self.assertIn(b"Retry-After: 1\r\n", answer)
        self.assertEqual(server.get("/health")[0], 200)
        close_all(held)
        server.until(lambda stats: stats["exchanges"] == 1, "the end of all")
        self.assertIn(b"\nbn_server_memory_bytes 0\n", server.get("/metrics")[1])
        self.assertEqual(server.ok("/tokenize", {"text": "a" * 100000})["count"], 100001)
        self.assertLess(peak(server) - before, 2 * self.LIMIT)
        self.assertEqual(server.stop(), 0)

    def test_a_body_is_counted_once(self):
        server, _ = self.serve()
        sent, most = 3 << 20, 4 << 20
        for head, chunk in [(b"Content-Length: %d" % most, b""), (b"Transfer-Encoding: chunked", b"%x\r\n" % most)]:
            s = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n" + chunk + b"x" * sent)
            wait_until(lambda: unread(server, s) == 0 and counted(server) >= sent, "all is read")
            self.assertLessEqual(counted(server), most + 1)
            s.close()
            wait_until(lambda: counted(server) == 0, "the end")
        self.assertEqual(server.stop(), 0)

    def test_what_is_behind_a_body_stays_in_the_kernel(self):
        server = Server(model=SLOW, context=1 << 16, max_header=4096)
        body = json.dumps({**LONG, "stream": True}).encode()
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for head, body in [(b"Content-Length: %d" % len(body), body), (b"Transfer-Encoding: chunked", chunks)]:
            s = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            server.until(lambda stats: stats["exchanges"] == 2, "the head is read")
            s.sendall(body + b"x" * 60000)
            server.until(lambda stats: stats["running"] == 1, "the answer begins")
            self.assertGreaterEqual(unread(server, s), 60000 - 4096)
            s.close()
            server.until(lambda stats: stats["exchanges"] == 1, "the end")
        self.assertEqual(server.stop(), 0)

    def test_values(self):
        server, before = self.serve()
        body = json.dumps({"prompt": [1] * 260000, "max_tokens": 1}).replace(" ", "")
        data = server.post("/v1/completions", body)
        self.assertEqual((data[0], data[1]["error"]["code"]), (400, "too_large"))  # it would take 40 MB
        self.assertEqual(server.ok("/tokenize", {"text": "ab"})["count"], 3)
        self.assertLess(peak(server) - before, self.LIMIT)
        self.assertEqual(server.stop(), 0)

    def test_answers(self):
        server, before = self.serve(context=8192, max_batch=128)
        body = {"prompt": "abcdefgh", "max_tokens": 2000, "ignore_eos": True, "n": 64, "logprobs": 5}
        status, data = server.post("/v1/completions", body)  # some 40 MB
        self.assertEqual((status, data["error"]["code"]), (400, "too_large"))
        server.until(lambda stats: stats["unreleased"] == 0, "the end of all")
        self.assertEqual(server.ok("/v1/completions", {**body, "n": 1, "max_tokens": 5})["usage"]["completion_tokens"], 5)
        self.assertEqual(server.stop(), 0)

    def test_an_answer_is_refused_while_a_thread_frees_its_request(self):  # for ThreadSanitizer
        memory = 48 << 20
        server = Server(model="builtin:echo", max_memory=memory, receive_timeout=300, max_body=32 << 20)
        body = {"prompt": "abcdefgh", "max_tokens": 8, "ignore_eos": True, "logprobs": 32, "metadata": {"x": [1] * 200000}}
        text = json.dumps(body, separators=(",", ":"))
        values = sum(text.count(c) for c in ",:[{") + 1
        left = memory - 140 * values - 4 * len(text) - 8000  # less than its event takes
        holder = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % left + b"x" * (left - 1))
        wait_until(lambda: counted(server) == left, "the memory is held")
        for _ in range(5):
            self.assertIn(server.post("/v1/completions", text)[0], (200, 503))  # 200: it was freed before
        holder.close()
        wait_until(lambda: counted(server) == 0, "the end")
        self.assertEqual(server.post("/v1/completions", text)[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_large_answer_is_put_together_by_a_thread(self):  # the same
        server = Server(model="builtin:echo", context=8192, max_batch=128)
        body = {"prompt": "abcdefgh", "max_tokens": 200, "ignore_eos": True, "n": 128, "logprobs": 5}
        self.assertEqual(server.ok("/v1/completions", body)["usage"]["completion_tokens"], 128 * 200)
        self.assertEqual(server.stop(), 0)

    def test_streams_that_are_not_read(self):
        server, before = self.serve(context=1 << 16, max_memory=8 << 20, max_unread=16 << 20, max_batch=64, idle_timeout=300)
        sockets = hold(server, 16, request("/v1/completions", json.dumps({**LONG, "stream": True, "logprobs": 5})), room=4096)
        server.until(lambda stats: stats["cancelled"] > 0, "a stream is cut", 300)
        self.assertLess(peak(server) - before, 5 * self.LIMIT)  # the 8 MiB, 1 MiB of each stream that nothing has looked at, and the allocator's
        close_all(sockets)
        self.assertEqual(server.stop(), 0)


def hostile(number):
    """A schema within all bounds that compiles until the library gives it up, after one or two seconds."""
    def one(half):
        return {"type": "object", "patternProperties": {f"^(a|b)*x{number}{half}{i}$": {"type": "integer"} for i in range(200)}}
    return {"anyOf": [one("y"), one("z")]}


class Threads(unittest.TestCase):
    def ask(self, number):
        return request("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4, "json_schema": hostile(number)}))

    def test_grammars_hold_up_nothing_else(self):
        server = Server()
        slow = [server.raw(self.ask(i)) for i in range(8)]
        server.until(lambda stats: stats["working"] > 2, "more than threads at work or in line")
        for text in ("a b " * 5000, "a"):  # a thread's, and the loop's
            self.assertIn("count", server.ok("/tokenize", {"text": text}))
        self.assertGreater(server.stats()["working"], 0)  # they are there still
        close_all(slow)
        server.until(lambda stats: stats["working"] <= 2, "what has not begun is dropped")
        server.stop(signal.SIGKILL)

    def sneak(self, path, harmless, hostile):
        """Two requests with hostile grammars of which something before looked harmless, and a known grammar meanwhile."""
        tries = 5  # a busy machine may be slower with the known one
        self.assertTrue(any(self.is_beside(path, harmless, hostile) for _ in range(tries)))

    def is_beside(self, path, harmless, hostile):
        """Whether the known one is answered while the hostile ones are there still."""
        server = Server(model="builtin:echo")
        known = {"prompt": "a", "max_tokens": 2, "guided_regex": "[ab]+"}
        for _ in range(2):
            server.ok("/v1/completions", known)
        for i in range(2):
            server.post(path, harmless(i))
        slow = [server.raw(request(path, json.dumps(hostile(i)))) for i in range(2)]
        server.until(lambda stats: stats["working"] == 2, "both at work")
        beside = True
        for body in (known, {"prompt": "a b " * 2000, "max_tokens": 2}):
            server.ok("/v1/completions", body)
            beside &= server.stats()["working"] == 2
        close_all(slow)
        server.stop(signal.SIGKILL)
        return beside

    def test_a_grammar_that_was_refused_unread_is_not_known(self):
        def body(i, **more):
            return {"prompt": "a", "max_tokens": 4, "json_schema": hostile(i), **more}
        self.sneak("/v1/completions", lambda i: body(i, prompt=[4294967295]), body)

    def test_a_grammar_that_a_flag_refused_is_not_known(self):
        def body(i, **more):
            schema = {**hostile(i), "properties": {"x": {"type": "string", "format": "unheard"}}}
            return {"prompt": "a", "max_tokens": 4, "json_schema": schema, **more}
        self.sneak("/v1/completions", lambda i: body(i, unknown_formats="refuse"), body)

    def test_tools_that_needed_no_grammar_are_not_known(self):
        def body(i, choice):
            tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **hostile(i)}}}
            return {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice, "max_tokens": 4}
        self.sneak("/v1/chat/completions", lambda i: body(i, "auto"), lambda i: body(i, "required"))

    def test_a_client_with_little_work_is_first(self):
        server = Server()
        slow = [server.raw(self.ask(i)) for i in range(6)]
        server.until(lambda stats: stats["working"] > 2, "more than threads at work or in line")
        other = socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=("127.0.0.2", 0))
        other.sendall(request("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4, "guided_regex": "[ab]+"})))
        while not other.recv(100).startswith(b"HTTP/1.1 200"):
            pass
        self.assertGreaterEqual(server.stats()["working"], 2)  # from earlier clients
        other.close()
        close_all(slow)
        server.stop(signal.SIGKILL)

    def test_clients_that_are_gone_do_not_hold_up_the_end(self):
        server = Server()
        slow = [server.raw(self.ask(i)) for i in range(3)]
        server.until(lambda stats: stats["working"] > 0, "at work")
        close_all(slow)
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=60), 0)
        server.process.stderr.close()

    def test_clients_that_stay_do_not_either(self):
        for signals, options in [(2, {}), (1, {"drain_timeout": 1})]:
            server = Server(model=SLOW, context=1 << 16, **options)
            stream = server.open_stream(LONG)
            grammar = server.raw(self.ask(1))
            half = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
            server.until(lambda stats: stats["working"] == 1 and stats["generated_tokens"] > 0, "at work")
            for _ in range(signals):
                server.process.terminate()
                server.until_closed()
            self.assertIn(b'"finish_reason":"cancelled"', read_all(stream))
            self.assertEqual(server.process.wait(timeout=60), 0)
            server.process.stderr.close()
            close_all([grammar, half])

    def test_a_third_signal_is_the_end_at_once(self):
        server = Server(model=SLOW, context=1 << 16)
        unread = server.raw(request("/tokenize", json.dumps({"text": "ab " * 1000000})), room=4096)
        self.assertEqual(unread.recv(1), b"H")  # the rest fits into no socket
        for words in ("finishing", "cancelling"):
            server.process.terminate()
            line = ""
            while words not in line:
                line = server.process.stderr.readline()
                self.assertTrue(line)
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=60), 0)
        self.assertIn("another signal", server.process.stderr.read())  # not the end of the 5 s that cancelling may take
        server.process.stderr.close()
        unread.close()


class Loop(unittest.TestCase):
    def test_long_bodies_are_read_by_threads(self):
        server = Server(model="builtin:echo")
        text = json.dumps({"prompt": [1] * 260000})  # 780 KB: some ten milliseconds
        stop, seen = threading.Event(), []

        def watch():
            while not stop.is_set():
                seen.append(server.stats()["working"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        end = time.monotonic() + 60
        while not any(seen) and time.monotonic() < end:
            self.assertIn("260000 tokens", server.post("/v1/completions", text)[1]["error"]["message"])
        stop.set()
        watcher.join()
        self.assertTrue(any(seen))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

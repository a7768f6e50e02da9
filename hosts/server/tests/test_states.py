"""Requests while the model loads, and refusals at the memory limit."""
import json
import signal
import unittest

from support import Server, request

PROMPT = {"prompt": "abcdefgh", "max_tokens": 4}


def read_head(s):
    """The first bytes on a socket: a short answer as a whole."""
    data = s.recv(1 << 16)
    s.close()
    return data


class Loading(unittest.TestCase):
    def test_the_page_and_the_state_alone_answer_while_the_model_loads(self):
        server = Server(wait=False, model="builtin:echo?load_ms=600000")
        self.assertEqual(server.get("/health"), (503, {"status": "loading"}))
        self.assertEqual(server.get("/")[0], 200)
        status, metrics = server.get("/metrics")
        self.assertEqual(status, 200)
        self.assertIn(b'bn_engine_state{state="loading"} 1\n', metrics)
        for method, path, body in [("POST", "/v1/completions", PROMPT), ("POST", "/v1/chat/completions", {"messages": []}),
                                   ("GET", "/v1/models", None), ("POST", "/tokenize", {"text": "a"})]:
            status, headers, data = server.request(method, path, body)
            self.assertEqual((status, headers["Retry-After"]), (503, "5"), path)
            self.assertIn("load", data["error"]["message"])
        self.assertEqual(server.stop(signal.SIGTERM), 0)  # at once: it does not wait for the model

    def test_a_model_whose_name_has_slashes(self):
        server = Server(model="builtin:echo", model_name="a/b c/\u00e9%2F")
        for path in ["/v1/models/a/b%20c/%C3%A9%252F", "/v1/models/a%2Fb%20c%2f%c3%a9%252F"]:
            self.assertEqual(server.get(path)[1].get("id"), "a/b c/\u00e9%2F", path)
        self.assertEqual(server.get("/v1/models/a")[0], 404)
        self.assertEqual(server.stop(), 0)

    def test_it_serves_once_the_model_is_loaded(self):
        server = Server(model="builtin:echo?load_ms=300")  # waits for /health
        self.assertEqual(server.post("/v1/completions", PROMPT)[0], 200)
        self.assertEqual(server.stop(), 0)


class Memory(unittest.TestCase):
    def test_a_request_beyond_the_memory_is_refused_and_others_go_on(self):
        server = Server(model="builtin:echo?us_per_token=300", context=8192, memory_limit=12 << 20, max_batch=1)
        running = server.open_stream({"prompt": "abcdefgh", "max_tokens": 8000, "ignore_eos": True})
        long, waiting = request("/v1/completions", json.dumps({"prompt": "a" * 8000, "max_tokens": 10, "ignore_eos": True})), []
        while server.stats()["rejected_memory"] == 0:  # they wait behind the one that runs
            waiting.append(server.raw(long))
            server.until(lambda stats: stats["accepted"] + stats["rejected_memory"] == len(waiting) + 1, "an answer")
        self.assertGreater(len(waiting), 1)
        refused = read_head(waiting.pop())
        self.assertIn(b" 429 ", refused)
        self.assertIn(b"Retry-After: 1\r\n", refused)
        self.assertIn(b"memory", refused)
        self.assertIn(b"data: ", running.recv(1 << 16))
        running.close()
        first, *others = waiting
        for s in others:
            s.close()
        self.assertIn(b" 200 ", read_head(first))
        server.until(lambda stats: stats["unreleased"] == 0, "the end of what was given up")
        self.assertEqual(server.post("/v1/completions", PROMPT)[0], 200)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

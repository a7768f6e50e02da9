"""While the model loads, where memory ends, and what is refused then."""
import signal
import threading
import time
import unittest

from support import Server

PROMPT = {"prompt": "abcdefgh", "max_tokens": 4}


class Loading(unittest.TestCase):
    def test_only_the_page_and_the_state_answer_while_the_model_loads(self):
        server = Server(wait=False, model="builtin:echo?load_ms=600000")
        self.assertEqual(server.get("/health"), (503, {"status": "loading"}))
        self.assertEqual(server.get("/")[0], 200)
        for method, path, body in [("POST", "/v1/completions", PROMPT), ("POST", "/v1/chat/completions", {"messages": []}),
                                   ("GET", "/v1/models", None), ("POST", "/tokenize", {"text": "a"})]:
            status, headers, data = server.request(method, path, body)
            self.assertEqual((status, headers["Retry-After"]), (503, "1"), path)
            self.assertIn("load", data["error"]["message"])
        self.assertEqual(server.stop(signal.SIGTERM), 0)  # at once: nobody waits for the model

    def test_it_serves_once_the_model_is_loaded(self):
        server = Server(model="builtin:echo?load_ms=300")  # waits for /health
        self.assertEqual(server.post("/v1/completions", PROMPT)[0], 200)
        self.assertEqual(server.stop(), 0)


class Memory(unittest.TestCase):
    def test_requests_beyond_the_memory_are_refused_and_others_go_on(self):
        # The echo model takes next to nothing: the limit is what its engine has, and some for prompts.
        server = Server(model="builtin:echo?us_per_token=1000", max_sequence=1 << 16, memory_limit=24 << 20, max_batch=4)
        long = {"prompt": "a" * 60000, "max_tokens": 10, "ignore_eos": True}
        answers, lock = [], threading.Lock()

        def ask():
            status, headers, data = server.request("POST", "/v1/completions", long)
            with lock:
                answers.append((status, headers["Retry-After"], data))

        running = server.open_stream({"prompt": "abcdefgh", "max_tokens": 200, "ignore_eos": True})
        threads = [threading.Thread(target=ask) for _ in range(120)]
        for thread in threads:
            thread.start()
        server.until(lambda stats: stats["rejected_memory"] > 0, "a refusal")
        for thread in threads:
            thread.join()
        refused = [a for a in answers if a[0] == 429]
        self.assertGreater(len(refused), 0)
        for _, retry, data in refused:
            self.assertEqual(retry, "1")
            self.assertIn("memory", data["error"]["message"])
        self.assertTrue(all(a[0] in (200, 429) for a in answers), {a[0] for a in answers})
        data = b""
        while b"[DONE]" not in data:
            more = running.recv(1 << 16)
            self.assertTrue(more, data[-200:])
            data += more
        running.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

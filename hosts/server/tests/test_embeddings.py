"""Embeddings of many, long and shortened texts."""
import json
import os
import shutil
import tempfile
import threading
import unittest

from support import LONG, ROOT, Server, ServerTest, request

MODELS = os.path.join(ROOT, "tests", "golden", "models")


def vector_of(ids):
    """The echo model's embedding: how many ids have each remainder by 16, divided by the vector's length."""
    counts = [sum(1 for id in ids if id % 16 == rest) for rest in range(16)]
    length = sum(count * count for count in counts) ** 0.5
    return [count / length for count in counts]


def ended(stats):
    return stats["total_ms"]["count"]


class Many(unittest.TestCase):
    def setUp(self):
        self.server = Server(model="builtin:echo?us_per_token=1000", queue=4)

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def same(self, data, texts):
        self.assertEqual([entry["index"] for entry in data["data"]], list(range(len(texts))))
        for entry, ids in zip(data["data"], texts):
            for x, wanted in zip(entry["embedding"], vector_of(ids), strict=True):
                self.assertAlmostEqual(x, wanted, places=5)

    def test_200_texts_for_a_queue_of_4(self):
        texts = [[(number * 7 + at) % 250 for at in range(number % 9 + 1)] for number in range(200)]
        data = self.server.ok("/v1/embeddings", {"input": texts})
        self.same(data, texts)
        self.assertEqual(data["usage"]["prompt_tokens"], sum(map(len, texts)))
        stats = self.server.stats()
        self.assertEqual((ended(stats), stats["unreleased"], stats["rejected_queue_full"]), (200, 0, 0))

    def test_others_leave_one_place(self):
        texts = [[number, number + 1] for number in range(40)]
        others = [self.server.open_stream(LONG) for _ in range(3)]
        self.same(self.server.ok("/v1/embeddings", {"input": texts}), texts)
        others.append(self.server.open_stream(LONG))
        for body in [{"input": "a"}, {"input": texts}]:
            status, headers, data = self.server.request("POST", "/v1/embeddings", body)
            self.assertEqual((status, headers["Retry-After"], "try again later" in data["error"]["message"]), (429, "1", True))
        for other in others:
            other.close()
        self.server.until(lambda stats: stats["unreleased"] == 0, "the end of the others")

    def test_others_take_the_place_meanwhile(self):
        texts = [[number % 250] * 10 for number in range(300)]
        others, answers = [self.server.open_stream(LONG) for _ in range(3)], []
        embedding = threading.Thread(target=lambda: answers.append(self.server.post("/v1/embeddings", {"input": texts})))
        embedding.start()
        self.server.until(lambda stats: ended(stats) > 0, "the first vector")
        while embedding.is_alive():  # one of them gets in where a text's place is free for a moment
            s = self.server.raw(request("/v1/completions", json.dumps({**LONG, "stream": True})))
            if b"200 OK" in s.recv(1 << 16):
                others.append(s)
                break
            s.close()
        self.assertEqual((len(others), embedding.is_alive()), (4, True))
        before = self.server.stats()
        self.server.until(lambda stats: stats["rejected_queue_full"] >= before["rejected_queue_full"] + 3, "more tries")
        self.assertEqual((answers, ended(self.server.stats())), ([], ended(before)))
        others.pop().close()
        embedding.join()
        [(status, data)] = answers
        self.assertEqual(status, 200, data)
        self.same(data, texts)
        for other in others:
            other.close()

    def test_a_client_that_leaves_cancels_the_rest(self):
        texts = [[number % 250] * 500 for number in range(200)]
        s = self.server.raw(request("/v1/embeddings", json.dumps({"input": texts})))
        self.server.until(lambda stats: ended(stats) > 1, "the first vectors")
        s.close()
        self.server.until(lambda stats: stats["unreleased"] == 0, "the end of what was given up")
        accepted = self.server.stats()["accepted"]
        self.assertLess(accepted, 200)
        self.server.ok("/v1/embeddings", {"input": "a"})
        self.assertEqual(self.server.stats()["accepted"], accepted + 1)

    def test_a_wrong_text_is_named_by_its_place(self):
        for at in [0, 3, 11]:
            texts = [[1, 2]] * 12
            texts[at] = [1, 99999]
            status, data = self.server.post("/v1/embeddings", {"input": texts})
            self.assertEqual((status, data["error"]["message"].count(f"request {at}: ")), (400, 1), data)
        self.server.until(lambda stats: stats["unreleased"] == 0, "the end of the others")


class Sizes(ServerTest):
    def test_both_numbers_are_named(self):
        for asked in [0, 257, -3, 1.5, 1e300]:
            for path in ["/v1/embeddings", "/api/embed"]:
                status, data = self.server.post(path, {"input": "x", "dimensions": asked})
                words = data["error"] if path == "/api/embed" else data["error"]["message"]
                self.assertEqual(status, 400)
                self.assertRegex(words, "^'dimensions' must be a whole number from 1 to 256, this model's size, and not -?[0-9.]+$")
        self.refused("/v1/embeddings", {"input": "x", "dimensions": "3"}, "'dimensions' must be a number")
        for asked in [1, 255, 256]:
            [entry] = self.server.ok("/v1/embeddings", {"input": "x", "dimensions": asked})["data"]
            self.assertEqual(len(entry["embedding"]), asked)
            self.assertAlmostEqual(sum(x * x for x in entry["embedding"]), 1, places=5)
        # Ollama's older route has no such field.
        self.assertEqual(len(self.server.ok("/api/embeddings", {"prompt": "x", "dimensions": 3})["embedding"]), 256)

    def test_a_folder_says_what_it_is_trained_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, said in [("listed", {"matryoshka_dimensions": [8, 16]}), ("none", {"is_matryoshka": False})]:
                to = shutil.copytree(os.path.join(MODELS, "bert-embedding"), os.path.join(folder, name))
                with open(os.path.join(to, "config.json")) as file:
                    config = json.load(file)
                with open(os.path.join(to, "config.json"), "w") as file:
                    json.dump({**config, **said}, file)
            server, own = Server(models=folder), config["hidden_size"]
            asked = {"model": "listed", "input": "a dog"}
            self.assertEqual(len(server.ok("/v1/embeddings", {**asked, "dimensions": 16})["data"][0]["embedding"]), 16)
            for model, size, words in [("listed", 9, f"must be {own} or one of 8, 16, for which this model is trained, and not 9"),
                                       ("none", 8, f"must be {own} and not 8: by its files this model is not trained for shorter embeddings")]:
                status, data = server.post("/v1/embeddings", {**asked, "model": model, "dimensions": size})
                self.assertEqual((status, data["error"]["message"]), (400, "'dimensions' " + words))
                server.ok("/v1/embeddings", {**asked, "model": model, "dimensions": own})
            self.assertEqual(server.stop(), 0)


class Steps(ServerTest):
    """An encoder, whose texts have to fit in a step."""

    options = {"model": os.path.join(MODELS, "bert-embedding"), "max_batch": 4, "max_batch_tokens": 16}
    long = "the dog runs, " * 20

    def test_a_text_longer_than_a_step(self):
        for path, field in [("/v1/embeddings", "input"), ("/api/embed", "input")]:
            status, data = self.server.post(path, {field: self.long, "truncate": False})
            words = data["error"] if path == "/api/embed" else data["error"]["message"]
            self.assertEqual(status, 400)
            self.assertRegex(words, r"maximum context length is 16 tokens\. However, your input resulted in \d+ \w+\. "
                             r"Please reduce the length of the input, or raise the server's --max-batch-tokens\.$")
        self.refused("/v1/embeddings", {"input": self.long}, "--max-batch-tokens")
        self.refused("/v1/embeddings", {"input": self.long, "truncate": 1}, "'truncate' must be true or false")

    def test_cutting(self):
        cut = self.server.ok("/v1/embeddings", {"input": [self.long, "the dog"], "truncate": True})
        self.assertEqual(len(cut["data"]), 2)
        own = self.server.ok("/v1/embeddings", {"input": "the dog"})["usage"]["prompt_tokens"]
        self.assertIn(cut["usage"]["prompt_tokens"] - own, range(13, 17))
        [whole, _] = self.server.ok("/api/embed", {"input": [self.long, "a"]})["embeddings"]
        self.assertEqual(whole, cut["data"][0]["embedding"])
        self.assertEqual(self.server.get("/props")[1]["default_generation_settings"]["n_ctx"], 16)

    def test_what_fits_is_not_cut(self):
        for text in ["the dog", "the dog runs, the dog"]:
            [plain] = self.server.ok("/v1/embeddings", {"input": text})["data"]
            [cut] = self.server.ok("/v1/embeddings", {"input": text, "truncate": True})["data"]
            self.assertEqual(cut, plain)


if __name__ == "__main__":
    unittest.main()

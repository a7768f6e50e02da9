"""Prefixes on disk: two servers on one folder at the same time, one after the other, and after SIGKILL."""
import random
import tempfile
import threading
import unittest

from support import Server

STORIES = [f"Story {n}: once upon a time there was a little dog. " * 6 for n in range(8)]


def asked(story, turns):
    return {"prompt": story + "The dog went home. " * turns, "max_tokens": 6, "temperature": 0}


class PromptCache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        plain = Server()
        self.wanted = {}
        for story in STORIES:
            for turns in range(3):
                body = {**asked(story, turns), "no_cache": True}
                self.wanted[story, turns] = plain.ok("/v1/completions", body)["choices"]
        self.assertEqual(plain.stop(), 0)

    def tearDown(self):
        self.folder.cleanup()

    def server(self):
        # So few blocks that prefixes leave memory all the time.
        return Server(prompt_cache=self.folder.name, kv_cache="1M", context=512, max_batch=2)

    def count(self, server, name):
        return sum(value for key, value in server.metrics().items() if name in key)

    def ask(self, server, seed, count, failures):
        rng = random.Random(seed)
        for _ in range(count):
            key = rng.choice(STORIES), rng.randrange(3)
            got = server.ok("/v1/completions", asked(*key))["choices"]
            if got != self.wanted[key]:
                failures.append((key, got))

    def load(self, servers, count):
        failures = []
        threads = [threading.Thread(target=self.ask, args=(server, seed, count, failures)) for seed, server in enumerate(servers * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_two_servers_share_a_folder(self):
        servers = [self.server(), self.server()]
        self.load(servers, 40)
        self.assertEqual(servers[0].stop(), 0)
        self.load(servers[1:], 20)
        self.assertEqual(servers[1].stop(), 0)
        after = self.server()
        self.load([after], 20)
        self.assertGreater(self.count(after, "external_prefix_cache_hits"), 0)
        self.assertEqual(after.stop(), 0)

    def test_a_killed_server_leaves_nothing_wrong(self):
        for _ in range(2):
            server = self.server()
            self.load([server], 10)
            server.process.kill()
            server.process.wait()
        after = self.server()
        self.load([after], 10)
        self.assertEqual(self.count(after, "disk_cache_damaged"), 0)
        self.assertGreater(self.count(after, "external_prefix_cache_hits"), 0)
        self.assertEqual(after.stop(), 0)


if __name__ == "__main__":
    unittest.main()

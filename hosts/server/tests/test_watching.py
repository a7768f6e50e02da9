"""The server's own reports: /metrics and /stats."""
import re
import shutil
import subprocess
import unittest

from support import LONG, SLOW, Server, ServerTest


class Metrics(ServerTest):
    options = {"model_name": 'a "model"', "max_batch": 4}

    def test_they_count_what_was_done(self):
        before = self.server.metrics()
        self.server.ok("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True})
        after = self.server.metrics()
        added = {name: after[name] - before[name] for name in before}
        self.assertEqual(added["bn_generation_tokens_total"], 30)
        self.assertEqual(added["bn_request_generation_tokens_sum"], 30)
        self.assertEqual(added['bn_request_generation_tokens_bucket{le="20"}'], 0)
        self.assertEqual(added['bn_request_generation_tokens_bucket{le="50"}'], 1)
        self.assertEqual(added['bn_request_success_total{finished_reason="length"}'], 1)
        for phase in ("prefill", "decode", "idle"):
            self.assertGreater(added[f'bn_engine_time_seconds_total{{phase="{phase}"}}'], 0)
        self.assertEqual(after['bn_engine_state{state="running"}'], 1)
        self.assertEqual(after["bn_max_batch_size"], 4)
        self.assertIn('bn_model_info{model_name="a \\"model\\"",architecture="bitnet-b1.58"}', after)

    def test_routers_find_what_they_route_by(self):
        now = self.server.metrics()
        config = next(name for name in now if name.startswith("bn_cache_config_info{"))
        self.assertEqual(re.search('block_size="([0-9]+)"', config).group(1), "32")
        self.assertEqual(int(re.search('num_gpu_blocks="([0-9]+)"', config).group(1)), self.server.stats()["kv_blocks_total"])
        for name in ("bn_num_requests_waiting", "bn_num_requests_running", "bn_kv_cache_usage_perc"):
            self.assertIn(name, now)

    def test_the_page_gets_what_it_shows(self):
        self.server.ok("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True})
        stats = self.server.stats()
        self.assertGreaterEqual(stats["generated_tokens"], 30)
        self.assertGreater(stats["prompt_tokens"], 0)
        self.assertGreater(stats["uptime_ms"], 0)
        page = self.server.get("/")[1].decode()
        for name in re.findall(r"\bs\.([a-z_]+)", page):
            self.assertIn(name, stats)

    @unittest.skipUnless(shutil.which("promtool"), "needs promtool")
    def test_promtool_finds_no_fault(self):
        done = subprocess.run(["promtool", "check", "metrics"], input=self.server.get("/metrics")[1], capture_output=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))


class States(unittest.TestCase):
    def test_a_draining_engine_says_so(self):
        server = Server(model=SLOW, context=1 << 16)
        watcher = server.connect()  # accepted before the drain
        watcher.request("GET", "/metrics")
        self.assertIn(b'bn_engine_state{state="running"} 1\n', watcher.getresponse().read())
        stream = server.open_stream(LONG)
        server.process.terminate()
        server.until_closed()
        watcher.request("GET", "/metrics")
        now = watcher.getresponse().read()
        watcher.close()
        self.assertIn(b'bn_engine_state{state="draining"} 1\n', now)
        self.assertEqual(sum(map(int, re.findall(rb"\nbn_num_requests_(?:running|waiting) (\d+)", now))), 1)
        stream.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

"""The alerts and the dashboard against a real Prometheus that scrapes bn-server under load. Needs prometheus and promtool
(Debian: prometheus), and target/c/bn-server. Everything listens on 127.0.0.1."""
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

DEPLOY = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
ALERTS = os.path.join(DEPLOY, "prometheus", "alerts.yml")
DASHBOARD = os.path.join(DEPLOY, "grafana", "bn_engine.json")
sys.path.insert(0, os.path.join(DEPLOY, "..", "hosts", "server", "tests"))

from support import Server  # noqa: E402

# The values that Grafana would put in place of the dashboard's variables.
VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$instance": ".*"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Prometheus:
    """Scrapes `port` once a second, and evaluates the alerts."""

    def __init__(self, port, folder):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as f:
            json.dump({  # YAML, too
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [ALERTS],
                "scrape_configs": [{"job_name": "bn", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
            }, f)
        own = free_port()
        self.url = f"http://127.0.0.1:{own}"
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}"],
            stdout=self.log, stderr=self.log)

    def get(self, path, **query):
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        """The values of an instant query; an AssertionError for one that is wrong."""
        try:
            result = self.get("/api/v1/query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise  # it starts
            raise AssertionError(f"{expression}\n{error.read().decode()}") from None
        return [float(sample["value"][1]) for sample in result]

    def wait(self, expression):
        end = time.monotonic() + 60
        while True:
            try:
                if self.query(expression):
                    return
            except (urllib.error.URLError, ConnectionError):
                pass  # not yet
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise AssertionError(f"{expression} has no result\n{self.log.read()}")
            time.sleep(0.2)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


def load(server, over):
    """Sends requests that end in every usual way, until `over`."""
    body = {"prompt": "Once upon a time there was a little girl", "max_tokens": 60}
    while not over.is_set():
        server.ok("/v1/completions", body)
        server.ok("/v1/completions", {**body, "stop": ["a"]})
        server.post("/v1/completions", {**body, "prompt": "x " * 4000})  # too long
        server.open_stream({**body, "max_tokens": 400, "ignore_eos": True}).close()


def operands(expression):
    """The expressions that an alert compares with numbers: `a > 1 and b < 2` gives a and b."""
    return [re.sub(r"\s*[<>=!]=?\s*[0-9.]+$", "", part.strip()) for part in re.split(r"\s+and\s+", expression)]


@unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "needs prometheus and promtool")
class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.server = Server(max_batch=2, model_name="demo")
        cls.addClassCleanup(cls.server.stop)
        cls.prometheus = Prometheus(cls.server.port, folder.name)
        cls.addClassCleanup(cls.prometheus.stop)
        over = threading.Event()
        for thread in [threading.Thread(target=load, args=(cls.server, over)) for _ in range(5)]:
            thread.start()
            cls.addClassCleanup(thread.join)
        cls.addClassCleanup(over.set)  # the last in, the first to run
        # Rules are recorded after the scrapes.
        cls.prometheus.wait('count_over_time(up{job="bn"}[1m]) >= 6 and on () bn:batch_utilization:rate5m')

    def has_data(self, expression):
        values = self.prometheus.query(expression)
        self.assertTrue(values, f"no data: {expression}")
        self.assertFalse(any(math.isnan(value) for value in values), f"not a number: {expression}")
        return values

    def test_the_server_is_scraped(self):
        targets = self.prometheus.get("/api/v1/targets")["activeTargets"]
        self.assertEqual([(target["health"], target["lastError"]) for target in targets], [("up", "")])
        self.assertEqual(self.has_data('bn_model_info{model_name="demo"}'), [1])

    def test_every_query_of_the_dashboard_has_data(self):
        with open(DASHBOARD) as f:
            dashboard = json.load(f)
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        self.assertEqual(names, ["datasource", "job", "instance"])
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                with self.subTest(panel=panel["title"], query=target["refId"]):
                    self.assertNotIn("$", expression)
                    self.has_data(expression)
        for variable in dashboard["templating"]["list"][1:]:
            values = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            self.has_data(values.group(1).replace("$job", ".*"))

    def test_every_rule_is_evaluated_and_finds_its_metrics(self):
        groups = self.prometheus.get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        self.assertEqual(len([rule for rule in rules if rule["type"] == "alerting"]), 7)
        for rule in rules:
            with self.subTest(rule["name"]):
                self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""))
                self.prometheus.query(rule["query"])
                for operand in operands(rule["query"]):
                    self.has_data(operand)

    def test_the_load_is_seen(self):
        self.assertGreater(self.has_data("bn:batch_utilization:rate5m")[0], 0.3)
        self.assertGreater(self.has_data('sum(rate(bn_request_rejected_total{reason="too_long"}[1m]))')[0], 0)
        self.assertGreater(self.has_data("max_over_time(bn_num_requests_waiting[1m])")[0], 0)


class Rules(unittest.TestCase):
    @unittest.skipUnless(shutil.which("promtool"), "needs promtool")
    def test_promtool_accepts_the_alerts_and_their_tests(self):
        for command in (["check", "rules", ALERTS], ["test", "rules", os.path.join(DEPLOY, "prometheus", "tests.yml")]):
            done = subprocess.run(["promtool", *command], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_metric_that_is_named_is_one_of_the_servers(self):
        server = Server()
        text = server.get("/metrics")[1].decode()
        self.assertEqual(server.stop(), 0)
        types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
        known = set(types) | {name + part for name, kind in types.items() if kind == "histogram" for part in ("_bucket", "_sum", "_count")}
        for path in (ALERTS, DASHBOARD):
            with open(path) as f:
                used = set(re.findall(r"\bbn_\w+", f.read())) - {"bn_engine", "bn_engine_report"}
            self.assertGreater(len(used), 5)
            self.assertEqual(used - known, set(), path)


if __name__ == "__main__":
    unittest.main()

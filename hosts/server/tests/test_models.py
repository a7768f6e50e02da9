"""Several models behind one server: found in a folder or a list, loaded when asked for, let go for others and when idle."""
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

from support import LONG, PROGRAM, ROOT, Server, read_until, request, wait_until

DEMO = os.path.join(ROOT, "models", "bn-demo.gguf")
ECHO = "builtin:echo?us_per_token=2000"


def say(server, model, **more):
    return server.post("/v1/completions", {"model": model, "prompt": "ab", "max_tokens": 2, **more})


def loaded(server):
    return [model["id"] for model in server.get("/v1/models")[1]["data"] if model["loaded"]]


class Models(unittest.TestCase):
    def test_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ["b.gguf", "a.gguf", "mmproj-a.gguf", "notes.txt"]:
                shutil.copy(DEMO, os.path.join(folder, name))
            os.mkdir(os.path.join(folder, "empty"))
            server = Server(models=folder)
            self.assertEqual([model["id"] for model in server.get("/v1/models")[1]["data"]], ["a", "b"])
            self.assertEqual(loaded(server), [])
            status, data = say(server, "b")
            self.assertEqual((status, data["model"], loaded(server)), (200, "b", ["b"]))
            status, data = say(server, "c")
            self.assertEqual((status, data["error"]["code"]), (404, "model_not_found"))
            status, data = server.post("/v1/completions", {"prompt": "ab"})
            self.assertEqual((status, "has several" in data["error"]["message"]), (400, True))
            self.assertEqual(server.get("/v1/models/a")[1]["id"], "a")
            self.assertEqual(server.stop(), 0)

    def test_files_that_come_to_a_folder_later(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(DEMO, os.path.join(folder, "b.gguf"))
            server = Server(models=folder)
            self.assertEqual(say(server, "a")[0], 404)
            shutil.copy(DEMO, os.path.join(folder, "a.gguf"))
            self.assertEqual(say(server, "a")[0], 200)
            os.mkfifo(os.path.join(folder, "pipe.gguf"))  # no model: opening it would wait
            shutil.copy(DEMO, os.path.join(folder, "c\x1b[31m\u202e.gguf"))
            os.remove(os.path.join(folder, "b.gguf"))
            self.assertEqual([model["id"] for model in server.get("/v1/models")[1]["data"]], ["a", "c[31m"])
            self.assertEqual(say(server, "c[31m")[1]["model"], "c[31m")
            self.assertEqual(say(server, "b")[0], 404)
            self.assertEqual(server.stop(), 0)

    def test_statistics_of_one(self):
        server = Server(models=f"one=builtin:echo,two={DEMO}")
        for name in ["two", "one", "one"]:
            self.assertEqual(say(server, name)[0], 200)
        self.assertEqual([server.get(f"/stats?model={name}")[1]["accepted"] for name in ("one", "two")], [2, 1])
        self.assertEqual(server.get("/stats?model=two")[1]["model"], "two")
        self.assertEqual(server.get("/stats?model=three")[0], 404)
        self.assertEqual(server.stop(), 0)

    def test_each_has_limits_and_metrics_of_its_own(self):
        server = Server(models=f"one={DEMO};context=64,two=builtin:echo;max-batch=3", max_batch=7)
        for name in ["one", "two"]:
            self.assertEqual(say(server, name)[0], 200)
        status, data = say(server, "one", max_tokens=1, prompt="word " * 100)
        self.assertEqual((status, data["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("maximum context length is 64 tokens", data["error"]["message"])
        self.assertEqual(say(server, "two", max_tokens=1, prompt="word " * 100)[0], 200)
        metrics = server.metrics()
        sizes = {name: value for name, value in metrics.items() if name.startswith("bn_max_batch_size")}
        self.assertEqual(sizes, {'bn_max_batch_size{model="one"}': 7, 'bn_max_batch_size{model="two"}': 3})
        self.assertEqual(metrics['bn_request_success_total{model="two",finished_reason="length"}'], 2)
        self.assertEqual(metrics['bn_model_loaded{model="one"}'], 1)
        text = server.get("/metrics")[1].decode().splitlines()
        kinds = [line for line in text if line.startswith("# TYPE")]
        self.assertEqual(len(kinds), len(set(kinds)))
        self.assertEqual(server.stop(), 0)

    def test_an_idle_models_weights_leave_memory_and_come_back(self):
        model = os.path.join(ROOT, "tests", "golden", "models", "llama-llama3.gguf")
        server = Server(models=f"one={model};idle-release=1")
        body = {"prompt": [3, 1, 4], "temperature": 0, "ignore_eos": True}
        first = say(server, "one", **body)[1]["choices"]
        released = 'bn_weight_releases_total{model="one"}'
        wait_until(lambda: server.metrics()[released] >= 1, "the weights are released")
        self.assertGreater(server.metrics()['bn_weights_released_bytes{model="one"}'], 10000)
        self.assertEqual(say(server, "one", **body)[1]["choices"], first)
        self.assertEqual(server.stop(), 0)

    def test_the_least_used_one_goes(self):
        server = Server(models=f"a={DEMO},b={DEMO},c={DEMO}", max_loaded=2)
        for name, wanted in [("a", ["a"]), ("b", ["a", "b"]), ("a", ["a", "b"]), ("c", ["a", "c"]), ("b", ["b", "c"])]:
            self.assertEqual(say(server, name)[0], 200)
            self.assertEqual(loaded(server), wanted)
        self.assertEqual(server.stop(), 0)

    def test_a_bound_in_bytes(self):
        server = Server(models=f"a={DEMO};kv-cache=4M,b={DEMO};kv-cache=4M", models_memory="9M")
        for name in ["a", "b", "a"]:
            self.assertEqual(say(server, name)[0], 200)
            self.assertEqual(loaded(server), [name])
        small = Server(models=f"a={DEMO};kv-cache=4M", models_memory="2M")
        status, data = say(small, "a")
        self.assertEqual((status, data["error"]["code"]), (503, "model_unavailable"))
        self.assertEqual([small.stop(), server.stop()], [0, 0])

    def test_idle_ones_go(self):
        server = Server(models=f"a={DEMO},b=builtin:echo", idle_unload=1)
        self.assertEqual(say(server, "a")[0], 200)
        wait_until(lambda: loaded(server) == [], "the model is not let go")
        self.assertEqual(say(server, "a")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_stream_is_not_cut_for_another_model(self):
        server = Server(models=f"slow={ECHO},other={DEMO}", max_loaded=1)
        stream = server.raw(request("/v1/completions", json.dumps({**LONG, "model": "slow", "max_tokens": 700, "stream": True})))
        begun = read_until(stream, b"data: ")
        answers = []
        threads = [threading.Thread(target=lambda name=name: answers.append((name, say(server, name)[0]))) for name in ["other", "slow"]]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        self.assertIn(b"[DONE]", begun + read_until(stream, b"[DONE]"))
        stream.close()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [("other", 200), ("slow", 200)])
        self.assertEqual(server.stop(), 0)

    def test_who_does_not_read_keeps_no_model(self):
        server = Server(models=f"echo=builtin:echo,other={DEMO}", max_loaded=1, max_unread=1 << 24)
        body = {**LONG, "model": "echo", "max_tokens": 30000, "stream": True}
        stream = server.raw(request("/v1/completions", json.dumps(body)), room=2048)
        self.assertEqual(say(server, "other")[0], 200)
        self.assertIn(b"[DONE]", read_until(stream, b"[DONE]"))
        stream.close()
        self.assertEqual(server.stop(), 0)

    def test_who_waits_may_hang_up(self):
        server = Server(models=f"slow={ECHO},other={DEMO}", max_loaded=1)
        stream = server.raw(request("/v1/completions", json.dumps({**LONG, "model": "slow", "stream": True})))
        read_until(stream, b"data: ")
        for _ in range(20):
            server.raw(request("/v1/completions", json.dumps({"model": "other", "prompt": "a"}))).close()
        server.until(lambda s: s["exchanges"] <= 2, "those who hung up still wait")
        stream.close()
        self.assertEqual(say(server, "other")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_an_end_while_some_wait(self):
        server = Server(models=f"slow={ECHO},other={DEMO}", max_loaded=1, drain_timeout=1)
        stream = server.raw(request("/v1/completions", json.dumps({**LONG, "model": "slow", "stream": True})))
        read_until(stream, b"data: ")
        waits = server.raw(request("/v1/completions", json.dumps({"model": "other", "prompt": "a"})))
        server.until(lambda s: s["exchanges"] == 3, "it does not wait")
        server.process.terminate()
        self.assertIn(b"503", waits.recv(1 << 16))
        self.assertEqual(server.stop(), 0)
        stream.close()

    def test_one_that_cannot_be_loaded(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(b"GGUF and no more")
            file.flush()
            server = Server(models=f"bad={file.name},good={DEMO}")
            for _ in range(2):
                status, data = say(server, "bad")
                self.assertEqual((status, data["error"]["code"]), (503, "model_unavailable"))
            self.assertEqual(say(server, "good")[0], 200)
            self.assertEqual(server.stop(), 0)

    def test_what_is_no_model_displaces_none(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(DEMO, os.path.join(folder, "good.GGUF"))
            for name, data in [("bad.gguf", b"junk and so on"), ("old.gguf", b"GGUF\1\0\0\0 and so on"), ("m.imatrix.gguf", b"")]:
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            server = Server(models=folder, max_loaded=1)
            self.assertEqual([model["id"] for model in server.get("/v1/models")[1]["data"]], ["bad", "good", "old"])
            self.assertEqual(say(server, "good")[0], 200)
            for name in ("bad", "old"):
                status, data = say(server, name)
                self.assertEqual((status, data["error"]["code"], loaded(server)), (503, "model_unavailable", ["good"]))
            self.assertEqual(server.stop(), 0)

    def test_wrong_lists(self):
        for models, words in [("a=x,a=y", "two models are called a"), ("a=x;port=1", "'port=1' is no option of a model"),
                              ("a=x;max-batch=none", "--max-batch must be a number"), ("/proc/self/fd", "no model is in"),
                              ("/srv/no-such-models", "there is no /srv/no-such-models"), ("a=x;speculation=draft", "needs --draft-model")]:
            done = subprocess.run([PROGRAM, "--port", "0", "--models", models], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, words in done.stderr), (2, True), done.stderr)
        done = subprocess.run([PROGRAM, "--model", "x", "--models", "y=z"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        done = subprocess.run([PROGRAM, "--model", "x", "--max-loaded", "2"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, "are for --models" in done.stderr), (2, True), done.stderr)


if __name__ == "__main__":
    unittest.main()

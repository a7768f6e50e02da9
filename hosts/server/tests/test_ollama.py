"""Ollama's API, by plain requests, and by the package `ollama` where it is installed."""
import json
import os
import unittest

from support import ROOT, Server, ServerTest

try:
    import ollama
except ImportError:
    ollama = None

ASKED = [{"role": "user", "content": "hello there"}]
SURE = {"temperature": 0, "num_predict": 16}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": SCHEMA}}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


class Plain(ServerTest):
    options = {"model": "builtin:echo"}

    def lines(self, path, body):
        status, headers, data = self.server.request("POST", path, body)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"), data)
        return [json.loads(line) for line in data.decode().splitlines()]

    def whole(self, path, body):
        return self.server.ok(path, {**body, "stream": False})

    def test_chats(self):
        body = {"model": "echo", "messages": ASKED, "options": SURE}
        whole = self.whole("/api/chat", body)
        self.assertTrue(whole["message"]["content"].startswith("user: hello"))
        self.assertEqual((whole["done"], whole["done_reason"], whole["eval_count"]), (True, "length", 16))
        lines = self.lines("/api/chat", body)
        self.assertEqual("".join(line["message"]["content"] for line in lines), whole["message"]["content"])
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual(lines[-1]["eval_count"], 16)
        for name in ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration"]:
            self.assertGreaterEqual(lines[-1][name], 0)

    def test_prompts(self):
        body = {"model": "echo:latest", "prompt": "hello", "options": SURE}
        chat = self.whole("/api/generate", {**body, "system": "be"})
        self.assertTrue(chat["response"].startswith("system: be\nuser:"[:16]), chat)
        raw = self.whole("/api/generate", {**body, "raw": True})
        self.assertTrue(raw["response"].startswith("hello"), raw)
        lines = self.lines("/api/generate", {**body, "raw": True, "logprobs": True, "top_logprobs": 2})
        self.assertEqual("".join(line["response"] for line in lines), raw["response"])
        self.assertEqual(sum(len(line.get("logprobs", [])) for line in lines), lines[-1]["eval_count"])
        for path, more in [("/api/generate", {}), ("/api/generate", {"prompt": ""}), ("/api/chat", {"messages": []}), ("/api/chat", {})]:
            [line] = [self.server.ok(path, {"model": "echo", **more})]
            self.assertEqual((line["done"], line["done_reason"]), (True, "load"))

    def test_calls(self):
        body = {"model": "echo", "messages": [{"role": "user", "content": "I look." + CALL}], "tools": TOOLS, "options": {"temperature": 0}}
        whole = self.whole("/api/chat", body)
        function = {"name": "weather", "arguments": {"city": "Paris"}}
        self.assertIn(function, [call["function"] for call in whole["message"]["tool_calls"]])
        calls = [call for line in self.lines("/api/chat", body) for call in line["message"].get("tool_calls", [])]
        self.assertEqual([call["function"] for call in calls], [call["function"] for call in whole["message"]["tool_calls"]])
        for call in calls + whole["message"]["tool_calls"]:
            self.assertGreater(len(call["id"]), 0)
        again = ASKED + [{"role": "assistant", "content": "", "tool_calls": [{"function": function}]}, {"role": "tool", "tool_name": "weather", "content": "21 degrees"}]
        self.assertIn("21 degrees", self.whole("/api/chat", {**body, "messages": again, "options": {"temperature": 0}})["message"]["content"])

    def test_formats(self):
        for seed in range(3):
            body = {"model": "echo", "messages": ASKED, "format": SCHEMA, "options": {"seed": seed, "num_predict": 300}}
            self.assertIn(json.loads(self.whole("/api/chat", body)["message"]["content"])["city"], ["Paris", "Rome"])
        made = self.whole("/api/generate", {"model": "echo", "prompt": "x", "format": "json", "options": {"seed": 1, "num_predict": 40}})
        self.assertEqual(made["response"][0], "{")

    def test_thinking(self):
        body = {"model": "echo", "messages": [{"role": "user", "content": "<think>hm</think>so"}], "options": {"temperature": 0}}
        self.assertEqual(self.whole("/api/chat", {**body, "think": True})["message"]["role"], "assistant")
        self.assertEqual(self.whole("/api/chat", {**body, "think": "low"})["message"]["role"], "assistant")

    def test_options(self):
        plain = {"model": "echo", "prompt": "hello", "raw": True}
        for options in [{"num_ctx": 4096, "num_gpu": 1, "num_thread": 4}, {"mirostat": 2}, {"mirostat": 0, "mirostat_tau": 5.0}, {"repeat_last_n": 0, "repeat_penalty": 1.3},
                        {"repeat_last_n": -1}, {"stop": ["l", "", None]}, {"repeat_penalty": 1.1, "repetition_penalty": 1000}, {"num_predict": -1, "seed": 7, "top_k": 5, "top_p": 0.5, "min_p": 0.1}]:
            self.whole("/api/generate", {**plain, "options": options})
        self.assertEqual(self.whole("/api/generate", {**plain, "options": {"temperature": 0, "stop": ["l"]}})["response"], "he")

    def test_mistakes(self):
        for path, more, words in [("/api/chat", {"messages": [{"role": "x"}]}, "'role'"), ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "no images"),
                                  ("/api/generate", {"prompt": "a", "images": ["x"]}, "'images[0]' is of the type image"), ("/api/generate", {"prompt": "a", "raw": True, "images": ["x"]}, "no images"),
                                  ("/api/generate", {"prompt": "a", "options": {"top_p": 2}}, "'options.top_p'"), ("/api/generate", {"prompt": "a", "options": {"stop": [5]}}, "'options.stop'"),
                                  ("/api/generate", {"prompt": "a", "context": [1]}, "'context'"), ("/api/generate", {"prompt": "a", "template": "x"}, "'template'"),
                                  ("/api/generate", {"prompt": "a", "keep_alive": "soon"}, "'keep_alive'"), ("/api/generate", {"keep_alive": "soon"}, "'keep_alive'"),
                                  ("/api/chat", {"messages": ASKED, "format": "xml"}, "'format'"), ("/api/embed", {}, "'input' is missing")]:
            status, data = self.server.post(path, {"model": "echo", **more})
            self.assertEqual((status, list(data)), (400, ["error"]), data)
            self.assertIn(words, data["error"])
        for path in ["chat", "generate", "embed", "embeddings", "show"]:
            body = {"model": "none", "messages": ASKED, "prompt": "a", "input": "a"}
            self.assertEqual(self.server.post("/api/" + path, body), (404, {"error": "model 'none' not found"}))
        status, data = self.server.post("/api/pull", {"model": "echo"})
        self.assertEqual((status, data), (404, {"error": "there is no POST /api/pull"}))

    def test_what_has_no_meaning_here_is_passed_over(self):
        options = {"tfs_z": None, "penalize_newline": True, "low_vram": True, "f16_kv": True, "num_gqa": 8, "vocab_only": False, "seed": -1, "top_k": -1, "mirostat": 1, "fast": 1}
        count = "bn_server_ignored_fields_total"
        before = self.server.metrics()[count]
        for keep in [0.5, 5, -1, "5m", "1h30m", "1.5h", "300ms", "-1", "-1m", "10", None]:
            more = {"shift": True, "truncate": True, "keep_alive": keep, "think": None, "format": None, "tools": None, "template": "", "context": [], "images": []}
            self.whole("/api/chat", {"model": "echo", "messages": ASKED, "options": {**options, "num_predict": 2}, "shift": True, "truncate": False, "keep_alive": keep, "format": "", "tools": []})
            self.whole("/api/generate", {"model": "echo", "prompt": "x", "options": {**options, "num_predict": 2}, **more})
        self.assertEqual(self.server.metrics()[count] - before, 22)  # the option 'fast'
        server = Server(model="builtin:echo", strict=1)
        status, data = server.post("/api/generate", {"model": "echo", "prompt": "a", "options": {"fast": 1, "tfs_z": 1}})
        self.assertEqual((status, data), (400, {"error": "'options.fast' is not a field of this request"}))
        server.stop()

    def test_pictures_of_earlier_turns_become_words(self):
        chat = [{"role": "user", "content": "see", "images": ["iVBORw0KGgo="]}, {"role": "assistant", "content": "no"}, {"role": "user", "content": "so?"}]
        text = self.whole("/api/chat", {"model": "echo", "messages": chat, "options": {"temperature": 0, "num_predict": 100}})["message"]["content"]
        self.assertIn("[image: not shown, as this model reads text only]\nsee", text)

    def test_histories_always_render(self):
        for arguments in [None, "Ro", [1], '{"city": "R"}', {"city": "R"}, {}]:
            calls = [{"id": None, "function": {"index": 0, "name": "weather", "arguments": arguments}}, {"function": {"name": "", "arguments": {}}}]
            chat = [*ASKED, {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": calls}, {"role": "tool", "tool_name": "weather", "content": "x"},
                    {"role": "tool", "content": ""}, {"role": "tool", "tool_call_id": "zz", "content": "y"}, {"role": "system", "content": "be"}, {"role": "user", "content": "go"}]
            self.whole("/api/chat", {"model": "echo", "messages": chat, "tools": TOOLS, "options": SURE})

    def test_sampling_is_that_of_chats(self):
        body = {"model": "echo", "prompt": "hello", "options": {"seed": 5, "num_predict": 24}}
        own = {**body["options"], "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        self.assertEqual(self.whole("/api/generate", body)["response"], self.whole("/api/generate", {**body, "options": own})["response"])
        raw = {**body, "raw": True}
        self.assertEqual(self.whole("/api/generate", raw)["response"], self.whole("/api/generate", {**raw, "options": {**body["options"], "temperature": 1}})["response"])

    def test_lists(self):
        [model] = self.server.get("/api/tags")[1]["models"]
        self.assertEqual((model["name"], len(model["digest"])), ("echo", 64))
        [model] = self.server.get("/api/ps")[1]["models"]
        self.assertGreater(model["context_length"], 0)
        shown = self.server.ok("/api/show", {"model": "echo"})
        self.assertEqual((shown["capabilities"], shown["model_info"]["general.architecture"]), (["completion", "tools"], "echo"))
        version = self.server.get("/api/version")[1]
        self.assertGreaterEqual([int(part) for part in version["version"].split(".")], [0, 6, 4])  # what Copilot asks for
        self.assertEqual(version["bn_engine"], self.server.get("/version")[1]["version"])
        self.assertEqual(self.server.ok("/api/show", {"name": "echo", "verbose": False})["capabilities"], ["completion", "tools"])


class Embeddings(ServerTest):
    options = {"queue": 8, "context": 64}

    def test_long_texts_are_cut_unless_the_client_says_no(self):
        text = "Once upon a time " * 100
        [whole], [cut] = (self.server.ok("/api/embed", {"input": text[:length]})["embeddings"] for length in (len(text), 1000))
        self.assertEqual(whole, cut)
        counted = self.server.ok("/api/embed", {"input": [text, "ab"], "truncate": True})
        self.assertEqual(len(counted["embeddings"]), 2)
        self.assertIn(counted["prompt_eval_count"] - self.server.ok("/api/embed", {"input": "ab"})["prompt_eval_count"], range(55, 65))
        ids = self.server.ok("/tokenize", {"text": text})["tokens"]
        self.assertEqual(self.server.ok("/api/embed", {"input": [ids]})["embeddings"], self.server.ok("/api/embed", {"input": [ids[:64]]})["embeddings"])
        self.assertEqual(len(self.server.ok("/api/embeddings", {"prompt": text})["embedding"]), 256)
        for path, body in [("/api/embed", {"input": text, "truncate": False}), ("/v1/embeddings", {"input": text})]:
            status, data = self.server.post(path, body)
            self.assertEqual(status, 400, data)
            self.assertIn("tokens", json.dumps(data))

    def test_nothing_to_embed_loads_the_model(self):
        for nothing in ["", []]:
            self.assertEqual(self.server.ok("/api/embed", {"input": nothing})["embeddings"], [])
        self.assertEqual(self.server.ok("/api/embeddings", {"prompt": ""}), {"embedding": []})

    def test_more_texts_than_the_queue_takes(self):
        texts = [f"text {i}" for i in range(21)]
        all_of = self.server.ok("/api/embed", {"input": texts})["embeddings"]
        data = self.server.ok("/v1/embeddings", {"input": texts})
        self.assertEqual([entry["index"] for entry in data["data"]], list(range(21)))
        self.assertEqual([entry["embedding"] for entry in data["data"]], all_of)
        for i in [0, 7, 8, 20]:
            self.assertEqual(self.server.ok("/api/embed", {"input": texts[i]})["embeddings"][0], all_of[i])
        usage = [self.server.ok("/v1/embeddings", {"input": text})["usage"]["prompt_tokens"] for text in texts]
        self.assertEqual(data["usage"], {"prompt_tokens": sum(usage), "total_tokens": sum(usage)})
        status, data = self.server.post("/v1/embeddings", {"input": [*texts, [1] * 100]})
        self.assertEqual((status, data["error"]["message"].startswith("request 21: ")), (400, True), data)

    def test_fewer_dimensions(self):
        [whole] = self.server.ok("/api/embed", {"input": "a"})["embeddings"]
        [cut] = self.server.ok("/api/embed", {"input": "a", "dimensions": 16})["embeddings"]
        length = sum(x * x for x in whole[:16]) ** 0.5
        self.assertEqual(len(cut), 16)
        for a, b in zip(cut, whole):
            self.assertAlmostEqual(a, b / length, places=6)
        self.assertEqual(self.server.ok("/api/embed", {"input": "a", "dimensions": 256})["embeddings"], [whole])
        self.assertEqual(self.server.post("/api/embed", {"input": "a", "dimensions": 257}), (400, {"error": "'dimensions' must be a whole number from 1 to 256, this model's size, and not 257"}))


class Files(ServerTest):
    """Models are described by their files before they are loaded."""

    MODELS = os.path.join(ROOT, "tests", "golden", "models")
    options = {"models": f"judge={MODELS}/qwen3-reranker.gguf,llama={MODELS}/llama-llama3,encoder={MODELS}/xlm-roberta-reranker,none=/nowhere.gguf"}

    def test_models_that_are_not_loaded(self):
        self.assertEqual(self.server.get("/api/ps")[1]["models"], [])
        listed = {model["name"]: model for model in self.server.get("/api/tags")[1]["models"]}
        self.assertEqual(list(listed), ["judge", "llama", "encoder", "none"])
        for name, family, form in [("judge", "qwen3", "gguf"), ("llama", "llama", "safetensors"), ("encoder", "xlm-roberta", "safetensors")]:
            details = listed[name]["details"]
            self.assertEqual((details["family"], details["format"]), (family, form), name)
            self.assertRegex(details["parameter_size"], r"^\d+\.\dM$")
            self.assertNotEqual(details["quantization_level"], "")
            shown = self.server.ok("/api/show", {"model": name})
            self.assertEqual(shown["details"], details)
            self.assertEqual(shown["model_info"]["general.architecture"], family)
            self.assertGreater(shown["model_info"][f"{family}.context_length"], 0)
        self.assertEqual(self.server.ok("/api/show", {"model": "encoder"})["capabilities"], ["embedding"])
        self.assertIn("completion", self.server.ok("/api/show", {"model": "llama:latest"})["capabilities"])
        self.assertEqual(listed["none"]["details"]["family"], "")
        # The model need not be loaded to be unloaded.
        self.assertEqual(self.server.ok("/api/generate", {"model": "llama", "keep_alive": 0})["done_reason"], "unload")
        self.assertEqual(self.server.get("/api/ps")[1]["models"], [])


class KeepAlive(ServerTest):
    options = {"models": "a=builtin:echo,b=builtin:echo"}

    def test_a_model_goes_when_it_is_told_to(self):
        self.server.ok("/api/generate", {"model": "a", "prompt": "x", "stream": False, "options": SURE})
        self.assertEqual([m["name"] for m in self.server.get("/api/ps")[1]["models"]], ["a"])
        self.server.ok("/api/generate", {"model": "b", "keep_alive": "10m"})
        self.assertEqual(self.server.ok("/api/generate", {"model": "a", "keep_alive": 0})["done_reason"], "unload")
        self.server.until(lambda _: [m["name"] for m in self.server.get("/api/ps")[1]["models"]] == ["b"], "it stays")


@unittest.skipIf(ollama is None, "no package ollama here")
class Package(ServerTest):
    options = {}

    def test_it_all(self):
        client = ollama.Client(host=f"http://127.0.0.1:{self.server.port}")
        sure = {"temperature": 0, "num_predict": 4}
        self.assertEqual(client.chat("bn-demo", [{"role": "user", "content": "17+25="}], options=sure).message.content, "42")
        parts = list(client.chat("bn-demo", [{"role": "user", "content": "17+25="}], options=sure, stream=True))
        self.assertEqual(("".join(part.message.content for part in parts), parts[-1].done_reason), ("42", "stop"))
        self.assertEqual(client.generate("bn-demo", "1+1=", options=sure).response, "2")
        self.assertEqual("".join(part.response for part in client.generate("bn-demo", "1+1=", options=sure, stream=True)), "2")
        self.assertEqual([len(vector) for vector in client.embed("bn-demo", ["one", "two"]).embeddings], [256, 256])
        self.assertEqual(len(client.embeddings("bn-demo", "one").embedding), 256)
        self.assertEqual([model.model for model in client.list().models], ["bn-demo"])
        self.assertEqual([model.name for model in client.ps().models], ["bn-demo"])
        self.assertEqual(client.show("bn-demo").details.family, "bitnet-b1.58")
        with self.assertRaises(ollama.ResponseError):
            client.generate("other", "x")


if __name__ == "__main__":
    unittest.main()

"""Every route, with the model inside the library."""
import base64
import concurrent.futures
import json
import os
import re
import struct
import subprocess
import unittest

from support import PROGRAM, ROOT, Server, ServerTest


class Demo(ServerTest):
    def test_completion(self):
        data = self.server.ok("/v1/completions", {"prompt": "17+25=", "temperature": 0})
        self.assertEqual(data["choices"], [{"index": 0, "text": "42", "logprobs": None, "finish_reason": "stop"}])
        self.assertEqual(data["usage"]["completion_tokens"], 3)
        self.assertEqual(data["object"], "text_completion")

    def test_stream_has_the_whole_answers_text(self):
        body = {"prompt": "Once upon a time", "max_tokens": 40, "seed": 7}
        whole = self.server.ok("/v1/completions", body)["choices"][0]
        events = self.server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        choices = [event["choices"][0] for event in events[:-1]]
        self.assertEqual("".join(choice["text"] for choice in choices), whole["text"])
        self.assertEqual([c["finish_reason"] for c in choices][-1], whole["finish_reason"])
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 40)
        self.assertEqual(len({event["id"] for event in events}), 1)

    def test_several_prompts_and_samples(self):
        data = self.server.ok("/v1/completions", {"prompt": ["Once", "The"], "n": 2, "max_tokens": 12, "seed": 3})
        self.assertEqual([choice["index"] for choice in data["choices"]], [0, 1, 2, 3])
        one = self.server.ok("/v1/completions", {"prompt": "The", "max_tokens": 12, "seed": 4})
        self.assertEqual(data["choices"][3]["text"], one["choices"][0]["text"])

    def test_without_a_seed_answers_differ(self):
        texts = {self.server.ok("/v1/completions", {"prompt": "Once upon", "max_tokens": 24, "temperature": 3})["choices"][0]["text"] for _ in range(4)}
        self.assertGreater(len(texts), 1)

    def test_tokens_as_prompt(self):
        tokens = self.server.ok("/tokenize", {"text": "17+25="})["tokens"]
        for prompt in (tokens, [tokens]):
            data = self.server.ok("/v1/completions", {"prompt": prompt, "temperature": 0})
            self.assertEqual(data["choices"][0]["text"], "42")

    def test_stop_string(self):
        data = self.server.ok("/v1/completions", {"prompt": "17+25=", "temperature": 0, "stop": ["2"]})
        self.assertEqual(data["choices"][0]["text"], "4")
        self.assertEqual(data["choices"][0]["finish_reason"], "stop")

    def test_echo_prompt(self):
        data = self.server.ok("/v1/completions", {"prompt": "17+25=", "temperature": 0, "echo": True})
        self.assertEqual(data["choices"][0]["text"], "17+25=42")

    def test_logprobs(self):
        body = {"prompt": "17+25=", "temperature": 0, "logprobs": 2}
        logprobs = self.server.ok("/v1/completions", body)["choices"][0]["logprobs"]
        self.assertEqual(logprobs["tokens"][:2], ["4", "2"])
        self.assertEqual(logprobs["text_offset"], [0, 1, 2])
        for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertEqual(len(top), 2)
            self.assertEqual(max(top.values()), own)
        streamed = [event["choices"][0]["logprobs"] for event in self.server.stream("/v1/completions", body)]
        for key in logprobs:
            self.assertEqual(sum((part[key] for part in streamed), []), logprobs[key])

    def test_a_prompt_alone(self):
        body = {"prompt": "17+25=", "echo": True, "max_tokens": 0, "temperature": 0}
        data = self.server.ok("/v1/completions", body)
        self.assertEqual(data["choices"], [{"index": 0, "text": "17+25=", "logprobs": None, "finish_reason": "length"}])
        self.assertEqual(data["usage"]["completion_tokens"], 0)
        events = self.server.stream("/v1/completions", body)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), "17+25=")
        more = {**body, "logprobs": 2, "n": 2, "stop": ["7"], "logit_bias": {"5": 3}}
        scored = self.server.ok("/v1/completions", more)["choices"]
        whole = self.server.ok("/v1/completions", {**body, "logprobs": 2, "max_tokens": 1})["choices"][0]["logprobs"]
        for choice in scored:
            self.assertEqual((choice["text"], choice["finish_reason"]), ("17+25=", "length"))
            self.assertEqual(choice["logprobs"], {name: values[:-1] for name, values in whole.items()})
        ids = self.server.ok("/tokenize", {"text": "Once upon"})["tokens"]
        self.assertEqual(self.server.ok("/v1/completions", {**body, "prompt": [ids, "ab"]})["choices"][0]["text"], "Once upon")
        self.refused("/v1/completions", {**body, "echo": False}, "'max_tokens' can be 0 with 'echo' only")
        for path, name in [("/v1/chat/completions", "max_tokens"), ("/v1/chat/completions", "max_completion_tokens"),
                           ("/generate/batch", "max_tokens"), ("/v1/responses", "max_output_tokens")]:
            status, data = self.server.post(path, {**self.MODEL_ROUTES[path], name: 0})
            self.assertEqual(status, 400, data)
            self.assertIn(f"'{name}' must be a whole number from 1", data["error"]["message"])

    def test_no_key_is_there_twice(self):
        def unique(pairs):
            keys = [key for key, _ in pairs]
            self.assertEqual(len(keys), len(set(keys)), keys)
            return dict(pairs)

        # Many tokens that are parts of characters may follow a character's first byte.
        for prompt in ["17+25=", "caf\u00e9 \u65e5\u672c \U0001f600"]:
            body = json.dumps({"prompt": prompt, "echo": True, "logprobs": 32, "max_tokens": 4, "temperature": 0})
            _, _, data = self.server.request("POST", "/v1/completions", body, parse=False)
            tops = json.loads(data, object_pairs_hook=unique)["choices"][0]["logprobs"]["top_logprobs"]
            self.assertIsNone(tops[0])
            self.assertTrue(all(1 <= len(top) <= 32 for top in tops[1:]))

    def test_logprobs_of_an_echoed_prompt(self):
        body = {"prompt": "17+25=", "temperature": 0, "logprobs": 1}
        answer = self.server.ok("/v1/completions", body)["choices"][0]["logprobs"]
        echoed = self.server.ok("/v1/completions", {**body, "echo": True})["choices"][0]["logprobs"]["token_logprobs"]
        self.assertIsNone(echoed[0])
        self.assertTrue(all(value <= 0 for value in echoed[1:]))
        self.assertGreater(len(echoed), len(answer["tokens"]) + 1)
        self.assertEqual(echoed[-len(answer["tokens"]):], answer["token_logprobs"])

    def test_prompt_logprobs(self):
        body = {"prompt": ["17+25=", "1+1=2"], "temperature": 0, "prompt_logprobs": 2, "logprobs": 1, "max_tokens": 4}
        data = self.server.ok("/v1/completions", body)
        plain = self.server.ok("/v1/completions", {**body, "prompt_logprobs": None})
        self.assertEqual([(c["text"], c["logprobs"]) for c in data["choices"]], [(c["text"], c["logprobs"]) for c in plain["choices"]])
        self.assertEqual([data["usage"][name] for name in ("prompt_tokens", "completion_tokens")],
                         [plain["usage"][name] for name in ("prompt_tokens", "completion_tokens")])
        self.assertNotIn("prompt_logprobs", plain["choices"][0])
        for index, choice in enumerate(data["choices"]):
            tokens = self.server.ok("/tokenize", {"text": body["prompt"][index]})["tokens"]
            first, *rest = choice["prompt_logprobs"]
            self.assertEqual((first, len(rest)), (None, len(tokens) - 1))
            echo = {"prompt": tokens, "echo": True, "logprobs": 0, "temperature": 0}
            echoed = self.server.ok("/v1/completions", echo)["choices"][0]["logprobs"]
            for token, text, logprob, entries in zip(tokens[1:], echoed["tokens"][1:], echoed["token_logprobs"][1:], rest):
                own = entries[str(token)]
                self.assertEqual((list(entries)[0], own["logprob"], own["decoded_token"]), (str(token), logprob, text))
                ranks = {entry["rank"]: entry["logprob"] for entry in entries.values()}
                self.assertLessEqual({1, 2}, set(ranks))
                self.assertGreaterEqual(ranks[1], ranks[2])
                if own["rank"] is None:
                    self.assertLessEqual(own["logprob"], ranks[2])
        self.assertIn(None, [entries[str(token)]["rank"] for token, entries in zip(tokens[1:], rest)])
        alone = self.server.ok("/v1/completions", {"prompt": "17+25=", "prompt_logprobs": 0, "no_cache": True})["choices"][0]
        self.assertEqual({len(entries) for entries in alone["prompt_logprobs"][1:]}, {1})
        for more, words in [({"prompt_logprobs": -1}, "'prompt_logprobs' must be a whole number from 0 to 32"),
                            ({"prompt_logprobs": 33}, "from 0 to 32"), ({"prompt_logprobs": True}, "must be a whole number"),
                            ({"prompt_logprobs": 1, "stream": True}, "cannot be streamed"),
                            ({"prompt_logprobs": 1, "n": 2}, "needs 'n' to be 1"),
                            ({"prompt_logprobs": 32, "max_tokens": 1, "prompt": ["x " * 250] * 26}, "more than 400000 entries")]:
            self.refused("/v1/completions", {"prompt": "x", **more}, words)

    def test_batch(self):
        body = {"prompts": ["17+25=", "1+1="], "temperature": 0}
        data = self.server.ok("/generate/batch", body)
        self.assertEqual([r["text"] for r in data["results"]], ["42", "2"])
        self.assertGreater(data["results"][0]["total_ms"], data["results"][0]["first_token_ms"])
        lines = [json.loads(line) for line in self.server.ok("/generate/batch", {**body, "stream": True}).splitlines()]
        for index, text in enumerate(["42", "2"]):
            self.assertEqual("".join(line["text"] for line in lines[:-1] if line["index"] == index), text)
        self.assertEqual(lines[-1]["usage"]["completion_tokens"], data["usage"]["completion_tokens"])

    def test_embeddings(self):
        body = {"input": ["one text", "another"]}
        data = self.server.ok("/v1/embeddings", body)["data"]
        self.assertEqual([entry["index"] for entry in data], [0, 1])
        self.assertAlmostEqual(sum(x * x for x in data[0]["embedding"]), 1, places=5)
        coded = self.server.ok("/v1/embeddings", {**body, "encoding_format": "base64"})["data"]
        raw = base64.b64decode(coded[1]["embedding"])
        self.assertEqual(list(struct.unpack(f"<{len(raw) // 4}f", raw)), [struct.unpack("f", struct.pack("f", x))[0] for x in data[1]["embedding"]])
        short = self.server.ok("/v1/embeddings", {**body, "dimensions": 3})["data"][0]["embedding"]
        self.assertEqual(len(short), 3)
        self.assertAlmostEqual(sum(x * x for x in short), 1, places=5)
        self.refused("/v1/embeddings", {"input": "x", "dimensions": 257}, "'dimensions'")

    def test_what_is_known_of_the_server(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))
        model = self.server.get("/v1/models")[1]["data"][0]
        self.assertEqual(self.server.get("/v1/models/" + model["id"]), (200, model))
        self.assertEqual(self.server.get("/v1/models/")[1]["data"][0], model)
        for path in ["/v1/models/other", f"/v1/models/{model['id']}%20"]:
            status, data = self.server.get(path)
            self.assertEqual((status, data["error"]["code"]), (404, "model_not_found"), path)
        self.assertEqual(self.server.post("/v1/models/" + model["id"], {})[0], 405)
        self.assertEqual(model["object"], "model")
        self.assertIn(b"# TYPE", self.server.get("/metrics")[1])
        self.assertIn("running", self.server.stats())
        self.assertIn(b"<!doctype html>", self.server.get("/")[1])

    MODEL_ROUTES = {
        "/v1/completions": {"prompt": "1+1="}, "/generate/batch": {"prompts": ["1+1="]}, "/tokenize": {"text": "1+1="},
        "/v1/embeddings": {"input": "1+1="}, "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/score": {"text_1": "a", "text_2": "b"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x"}, "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    }

    def test_a_name_that_is_not_there_is_refused_everywhere(self):
        name = self.server.get("/v1/models")[1]["data"][0]["id"]
        for path, body in self.MODEL_ROUTES.items():
            with self.subTest(path):
                status, data = self.server.post(path, {**body, "model": "gpt-4"})
                self.assertEqual(status, 404, data)
                self.assertIn("'gpt-4'", data["error"]["message"])
                if path.startswith("/v1/messages"):
                    self.assertEqual((data["type"], data["error"]["type"]), ("error", "not_found_error"))
                else:
                    self.assertEqual((data["error"]["type"], data["error"]["code"]), ("invalid_request_error", "model_not_found"))
                status, data = self.server.post(path, {**body, "model": 5})
                self.assertEqual((status, data["error"]["message"]), (400, "'model' must be a text"))
                self.assertEqual(self.server.post(path, body)[0], self.server.post(path, {**body, "model": name})[0])

    def test_any_model(self):
        server = Server(any_model=1)
        try:
            for name in ["gpt-4", ""]:
                self.assertEqual(server.ok("/v1/completions", {"prompt": "1+1=", "model": name})["model"], "bn-demo")
            self.assertEqual(server.post("/v1/completions", {"prompt": "1+1=", "model": 5})[0], 400)
        finally:
            server.stop()

    def test_adapters(self):
        golden = os.path.join(ROOT, "tests", "golden")
        adapters = f"one={golden}/adapters/llama,two={golden}/adapters/llama.gguf"
        server = Server(model=f"{golden}/models/llama-llama3", model_name="base", adapters=adapters)
        try:
            models = server.get("/v1/models")[1]["data"]
            self.assertEqual([(m["id"], m["parent"]) for m in models], [("base", None), ("one", "base"), ("two", "base")])
            self.assertEqual(server.get("/v1/models/two")[1], models[2])
            body = {"prompt": [3, 10, 17, 24], "max_tokens": 12, "temperature": 0, "logprobs": 0, "ignore_eos": True}
            answers = [server.ok("/v1/completions", {**body, "model": m}) for m in ["base", "one", "two"]]
            self.assertEqual([a["model"] for a in answers], ["base", "one", "two"])
            base, one, two = [a["choices"][0]["logprobs"]["token_logprobs"] for a in answers]
            self.assertEqual(one, two)
            self.assertEqual(server.post("/v1/completions", {**body, "model": "other"})[0], 404)
            for wrong in [5, [], {}, True]:
                status, refusal = server.post("/v1/completions", {**body, "model": wrong})
                self.assertEqual((status, refusal["error"]["message"]), (400, "'model' must be a text"))
            self.assertEqual(server.ok("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"], base)
            self.assertNotEqual(one, base)
        finally:
            server.stop()
        for wrong in ["x", "x=", "=y", "x=/nonexistent", adapters + f",one={golden}/adapters/llama"]:
            failed = subprocess.run([PROGRAM, "--port", "0", "--model", f"{golden}/models/llama-llama3", "--adapters", wrong],
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(failed.returncode, 3 if "nonexistent" in wrong else 2, failed.stderr)
            self.assertRegex(failed.stderr, "adapter")

    def test_session_priority_and_salt(self):
        body = {"prompt": "Once upon a time there was a", "max_tokens": 4, "session": "s", "priority": 255, "cache_salt": 5,
                "queue_timeout_ms": 50000, "timeout_ms": 60000}
        self.server.ok("/v1/completions", body)
        self.assertEqual(self.server.stats()["sessions"], 1)
        self.assertGreater(self.server.ok("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_speculation(self):
        body = {"prompt": "one two three one two three one two three one two", "max_tokens": 40, "ignore_eos": True,
                "temperature": 0}
        with_drafts, without = [self.server.ok("/v1/completions", {**body, "speculation": how, "draft_tokens": 4})
                                for how in ("lookup", "off")]
        self.assertEqual(with_drafts["choices"], without["choices"])
        details = [answer["usage"]["completion_tokens_details"] for answer in (with_drafts, without)]
        self.assertEqual(details[1], {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})

    def test_a_draft_model(self):
        server = Server(draft_model=os.path.join(ROOT, "models", "bn-demo.gguf"), speculation="off")
        try:
            body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "seed": 1}
            drafted, plain = [server.ok("/v1/completions", {**body, **more}) for more in ({"speculation": "draft"}, {})]
            self.assertEqual(drafted["choices"], plain["choices"])
            counts, none = [answer["usage"]["completion_tokens_details"] for answer in (drafted, plain)]
            self.assertEqual(none, {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})
            # The model drafts for itself.
            self.assertEqual(counts["rejected_prediction_tokens"], 0)
            seconds = re.search(rb"\nbn_spec_decode_drafting_seconds_total (.*)", server.get("/metrics")[1]).group(1)
            self.assertEqual(float(seconds) > 0, counts["accepted_prediction_tokens"] > 0)
        finally:
            self.assertEqual(server.stop(), 0)
        self.refused("/v1/completions", {"prompt": "x", "speculation": "draft"}, "no --draft-model")
        for options, words, status in [(["--draft-model", "/nowhere.gguf"], "/nowhere.gguf", 3), (["--speculation", "draft"], "needs --draft-model", 2),
                                       (["--draft-model", "builtin:echo"], "vocabulary", 3), (["--mtp", "1"], "mtp is set", 3),
                                       (["--drafter", "/nowhere.gguf"], "/nowhere.gguf", 3)]:
            failed = subprocess.run([PROGRAM, "--port", "0", *options], capture_output=True, text=True, timeout=60)
            self.assertEqual(failed.returncode, status, failed.stderr)
            self.assertIn(words, failed.stderr)

    def test_fields_that_are_refused(self):
        path, prompt = "/v1/completions", {"prompt": "x"}
        for more, words in [
            ({"temperature": "hot"}, "'temperature' must be a number"),
            ({"temperature": 101}, "'temperature' must be a number from 0 to 100"),
            ({"speculation": "yes"}, "'speculation' must be 'off', 'lookup' or 'draft'"),
            ({"speculation": ""}, "'speculation' must be 'off'"),
            ({"max_tokens": 0.5}, "whole number"),
            ({"n": 0}, "'n' must be"),
            ({"stop": [1]}, "'stop'"),
            ({"stream": 1}, "'stream' must be true or false"),
            ({"session": ""}, "session"),
            ({"seed": 1e300}, "'seed'"),
            ({"tools": [{"type": "function"}]}, "'tools' is not"),
            ({"response_format": {"type": "xml"}}, "'response_format' must have the type"),
            ({"response_format": {"type": "json_schema"}}, "'response_format' needs a JSON schema"),
            ({"json_schema": {"type": "thing"}}, "thing"),
            ({"json_schema": {"type": "string", "format": "of no name"}, "unknown_formats": "refuse"}, "of no name"),
            ({"json_whitespace": "loose"}, "'json_whitespace' must be 'compact', 'tight' or 'flexible'"),
            ({"unknown_formats": True}, "'unknown_formats' must be 'refuse' or 'ignore'"),
            ({"grammar": "root ::= x"}, "line 1: there is no rule named x"),
            ({"grammar": 1}, "'grammar' must be a text"),
            ({"structured_outputs": {"structural_tag": "a"}}, "'structured_outputs.structural_tag' is not supported"),
            ({"structured_outputs": "a"}, "'structured_outputs' must be an object"),
            ({"guided_choice": [1]}, "'guided_choice' must be a list of texts"),
            ({"speculation": "draft"}, "speculation is draft, and the engine has no --draft-model"),
            ({"no_cache": True, "session": "s"}, "session is set, and no_cache leaves nothing to keep"),
            ({"cache_salt": []}, "'cache_salt' must be a text or a whole number"),
            ({"stop": [str(i) for i in range(257)]}, "'stop' has more than 256 texts"),
            ({"grammar": "root ::= [a]", "guided_regex": "a"}, "is a second format"),
            ({"logit_bias": {"5": 101}}, "'logit_bias' must be an object"),
            ({"logit_bias": {"-5": 1}}, "'logit_bias' must be an object"),
            ({"logit_bias": [1]}, "'logit_bias' must be an object"),
            ({"typical_p": 0}, "typical_p"),
            ({"mirostat_tau": 5, "top_k": 4}, "mirostat is alone"),
            ({"prompt": []}, "'prompt' must not be empty"),
            ({"prompt": [[]]}, "'prompt'"),
            ({"prompt": ["a", 1]}, "'prompt'"),
            ({"prompt": [1, "a"]}, "'prompt'"),
            ({"prompt": [1.5]}, "token ids"),
            ({"prompt": [99999999]}, "vocabulary"),
            ({"prompt": "x " * 4000}, ""),
        ]:
            with self.subTest(more):
                self.refused(path, {**prompt, **more}, words)
        self.refused(path, {}, "'prompt' is missing")

    def test_fields_that_are_not_known_are_counted_and_ignored_unless_the_server_is_strict(self):
        count = "bn_server_ignored_fields_total"
        before = self.server.metrics()[count]
        for path, body in self.MODEL_ROUTES.items():
            self.server.ok(path, {**body, "unheard_of": 1, "nothing": None})
        self.assertEqual(self.server.metrics()[count] - before, len(self.MODEL_ROUTES))
        server = Server(strict=1)
        try:
            status, data = server.post("/v1/completions", {"prompt": "x", "unheard_of": 1})
            self.assertEqual((status, "'unheard_of' is not a field" in data["error"]["message"]), (400, True))
            server.ok("/v1/completions", {"prompt": "x", "nothing": None})
        finally:
            self.assertEqual(server.stop(), 0)

    def test_empty_and_null_fields_are_as_if_they_were_absent(self):
        self.server.ok("/v1/completions", {"prompt": "1+1=", "tools": [], "logit_bias": {}, "stop": None, "best_of": 1,
                                           "response_format": {"type": "text"}, "user": "u", "model": None})
        for more in [{"stop": ""}, {"stop": ["", None]}, {"grammar": ""}, {"guided_regex": ""}, {"guided_choice": []}, {"structured_outputs": {}},
                     {"structured_outputs": {"json": None, "regex": "", "disable_any_whitespace": True, "whitespace_pattern": " "}},
                     {"cache_salt": ""}, {"cache_salt": "a tenant"}, {"seed": -1}, {"seed": 2 ** 63 - 1}, {"logit_bias": {"99999999": 1}}]:
            with self.subTest(more):
                answer = self.server.ok("/v1/completions", {"prompt": "17+25=", "temperature": 0, **more})
                self.assertEqual(answer["choices"][0]["text"], "42")

    def test_samplers(self):
        def ask(**more):
            body = {"prompt": "Once upon a time", "max_tokens": 16, "seed": 1, "logprobs": 1, **more}
            return self.server.ok("/v1/completions", body)["choices"][0]

        plain = ask()
        for more in [{"xtc_probability": 1, "xtc_threshold": 0.01}, {"mirostat_tau": 0.2, "mirostat_eta": 1},
                     {"dynatemp_range": 1, "temperature": 1}, {"typical_p": 0.2}, {"top_n_sigma": 0.1},
                     {"repeat_last_n": 2, "presence_penalty": -50}, {"min_tokens": 14, "temperature": 3}]:
            with self.subTest(more):
                self.assertNotEqual(ask(**more)["text"], plain["text"])
        self.assertEqual(ask(top_p=0)["text"], ask(temperature=0)["text"])
        sure = ask(logit_bias={"50": 100}, ignore_eos=True)
        self.assertEqual(len(set(sure["logprobs"]["tokens"])), 1)

    def test_answers_of_a_format(self):
        schema = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}, "on": {"type": "boolean"}},
                  "required": ["size", "on"], "additionalProperties": False}
        named = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}}

        def ask(**more):
            choice = self.server.ok("/v1/completions", {"prompt": "A thing: ", "max_tokens": 300, "seed": 3, **more})["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            return choice["text"]

        for more in [{"response_format": named}, {"json_schema": schema}, {"guided_json": json.dumps(schema)},
                     {"response_format": {"type": "json_schema", "schema": schema, "json_schema": None}},
                     {"json_schema": schema, "guided_json": schema, "structured_outputs": {"json": schema, "choice": None}}]:
            with self.subTest(more):
                value = json.loads(ask(**more))
                self.assertIn(value["size"], ["small", "large"])
                self.assertIn(value["on"], [True, False])
        for seed in range(4):
            text = ask(json_schema=schema, json_whitespace="compact", seed=seed)
            self.assertEqual(text, json.dumps(json.loads(text), separators=(",", ":")))
            text = ask(json_schema={**schema, "x-guidance": {"whitespace_flexible": False}}, json_whitespace="flexible", seed=seed)
            self.assertEqual(text, json.dumps(json.loads(text), separators=(",", ":")))
            # At most a space follows a separator, or a line break and indentation.
            self.assertRegex(ask(json_schema=schema, seed=seed), r"^([^\s:,]|[:,] ?|\n( {0,32}|\t{1,16})(?!\s))*$")
        self.assertEqual(ask(json_schema={"const": "x", "format": "of no name"}), '"x"')
        for more in [{"grammar": 'root ::= "a" [bc]{3}'}, {"guided_regex": "a[bc]{3}"},
                     {"structured_outputs": {"regex": "a[bc]{3}", "disable_fallback": True}}, {"guided_grammar": 'root ::= "a" [bc]{3}'},
                     {"regex": "a[bc]{3}"}, {"ebnf": 'root ::= "a" [bc]{3}'}]:
            with self.subTest(more):
                self.assertRegex(ask(**more), "^a[bc]{3}$")
        texts = ["a.b*", "(c|d)\\\n", "<x>&[~#-]"]
        for more in [{"guided_choice": texts}, {"structured_outputs": {"choice": texts}}]:
            self.assertIn(ask(**more), texts)
        text = self.server.ok("/v1/completions", {"prompt": "x", "max_tokens": 8, "response_format": {"type": "json_object"}})
        self.assertEqual(text["choices"][0]["text"].lstrip()[:1], "{")

    def test_same_seeds_in_many_streams(self):
        def ask(i):
            events = self.server.stream("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 32, "seed": i % 4})
            return "".join(event["choices"][0]["text"] for event in events)

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            texts = list(pool.map(ask, range(32)))
        for i in range(32):
            self.assertEqual(texts[i], texts[i % 4])
        self.assertEqual(len(set(texts)), 4)


class Chat(ServerTest):
    options = {"model": "builtin:echo"}
    messages = [{"role": "user", "content": "hello there"}]

    def test_chat(self):
        data = self.server.ok("/v1/chat/completions", {"messages": self.messages, "max_tokens": 17, "ignore_eos": True, "temperature": 0})
        choice = data["choices"][0]
        self.assertTrue(choice["message"]["content"].startswith("user: hello"))
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(data["object"], "chat.completion")

    def test_chat_stream(self):
        body = {"messages": self.messages, "max_completion_tokens": 17, "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}
        events = self.server.stream("/v1/chat/completions", body)
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
        self.assertTrue(text.startswith("user: hello"))
        ends = [event["choices"][0] for event in events[:-1] if event["choices"][0]["finish_reason"]]
        self.assertEqual(ends, [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 17)

    def test_content_of_parts(self):
        parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
        one = {"messages": self.messages, "max_tokens": 17, "ignore_eos": True, "temperature": 0}
        other = {**one, "messages": [{"role": "user", "content": parts}]}
        texts = [self.server.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"] for body in (one, other)]
        self.assertEqual(texts[0], texts[1])

    CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}]

    def test_calls_are_told_apart(self):
        body = {"messages": [{"role": "user", "content": "I look." + self.CALL}], "tools": self.TOOLS, "temperature": 0}
        choice = self.server.ok("/v1/chat/completions", body)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        call = choice["message"]["tool_calls"][0]
        self.assertEqual((call["type"], call["function"]["name"], len(call["id"])), ("function", "get_weather", 9))
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Paris"})
        self.assertIn("I look.", choice["message"]["content"])
        events = self.server.stream("/v1/chat/completions", {**body, "seed": 1})
        deltas = [event["choices"][0]["delta"] for event in events]
        parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
        self.assertEqual(parts[0]["function"]["name"], "get_weather")
        self.assertEqual({part["index"] for part in parts}, {0})
        self.assertTrue(all("id" not in part for part in parts[1:]))
        self.assertEqual(json.loads("".join(part["function"]["arguments"] for part in parts)), {"city": "Paris"})
        self.assertEqual("".join(delta.get("content", "") for delta in deltas), choice["message"]["content"])
        self.assertEqual((events[-1]["choices"][0]["finish_reason"], deltas[-1]), ("tool_calls", {}))

    def test_calls_that_must_come(self):
        body = {"messages": self.messages, "tools": self.TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
        choice = self.server.ok("/v1/chat/completions", body)["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (None, "tool_calls"))
        [call] = choice["message"]["tool_calls"]
        self.assertIn(json.loads(call["function"]["arguments"])["city"], ["Paris", "Rome"])
        named = {**body, "tool_choice": {"type": "function", "function": {"name": "other"}}}
        self.refused("/v1/chat/completions", named, "no such function")
        # Such an answer has no text for the format.
        self.server.ok("/v1/chat/completions", {**body, "response_format": {"type": "json_object"}})

    def test_a_conversation_with_calls(self):
        call = {"id": "abc123XYZ", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        messages = self.messages + [{"role": "assistant", "content": None, "tool_calls": [call]},
                                    {"role": "tool", "tool_call_id": "abc123XYZ", "content": "21"}]
        body = {"messages": messages, "temperature": 0, "continue_final_message": False, "chat_template_kwargs": {"enable_thinking": False}}
        text = self.server.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        self.assertIn('{"name": "get_weather", "arguments": {"city":"Rome"}}', text)
        self.assertIn("user: <tool_response>\n21\n</tool_response>", text)

    def test_reasoning_is_told_apart(self):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\n"}]
        body = {"messages": messages, "continue_final_message": True, "reasoning_format": "think", "temperature": 0}
        message = self.server.ok("/v1/chat/completions", body)["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), ("user: x\nassistant: <think>\n", ""))
        events = self.server.stream("/v1/chat/completions", body)
        text = "".join(event["choices"][0]["delta"].get("reasoning_content", "") for event in events)
        self.assertEqual(text, message["reasoning_content"])

    def test_odd_messages_are_taken(self):
        function = {"type": "function", "function": None}
        messages = [{"role": "system", "content": None}, {"role": "user", "content": [{"type": "text", "text": None}]},
                    {"role": "assistant", "tool_calls": [function, {"id": "x", "function": {"name": None}}]},
                    {"role": "tool", "content": {"n": 1}}, {"role": "tool", "tool_call_id": "x", "content": 5}, {"role": "user", "content": "a\0b"}]
        text = self.server.ok("/v1/chat/completions", {"messages": messages, "temperature": 0})["choices"][0]["message"]["content"]
        self.assertEqual(text.count('"unknown"'), 2)
        for words in ['{"n":1}', "\n5\n", "user: ab"]:
            self.assertIn(words, text)

    def test_messages_that_are_refused(self):
        for message, words in [
            ({"role": "critic", "content": "x"}, "role"),
            ({"role": "user", "content": 5}, "content"),
            ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "takes only text, no images"),
        ]:
            self.refused("/v1/chat/completions", {"messages": [message]}, words)
        self.refused("/v1/chat/completions", {"messages": []}, "not empty")
        self.refused("/v1/chat/completions", {"messages": self.messages, "top_logprobs": 2}, "needs 'logprobs'")

    def test_chat_logprobs(self):
        body = {"messages": self.messages, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}
        tokens = self.server.ok("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(tokens), 3)
        self.assertEqual(len(tokens[0]["top_logprobs"]), 2)
        self.assertEqual(bytes(tokens[0]["bytes"]).decode(), tokens[0]["token"])

    def test_prompt_logprobs_of_a_chat(self):
        body = {"messages": self.messages, "tools": self.TOOLS, "max_tokens": 3, "n": 2, "prompt_logprobs": 1}
        data = self.server.ok("/v1/chat/completions", body)
        self.assertEqual(len(data["choices"]), 2)
        tokens = self.server.ok("/tokenize", {"messages": self.messages, "tools": self.TOOLS})["tokens"]
        self.assertEqual([list(entries)[0] if entries else None for entries in data["prompt_logprobs"]], [None] + [str(t) for t in tokens[1:]])
        self.assertTrue(all(entry["logprob"] <= 0 for entries in data["prompt_logprobs"][1:] for entry in entries.values()))
        self.refused("/v1/chat/completions", {**body, "tools": [{}]}, "tools[0]")

    def test_messages(self):
        body = {"model": "echo", "system": "s", "messages": self.messages, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        data = self.server.ok("/v1/messages", body)
        self.assertEqual((data["type"], data["role"], data["stop_reason"]), ("message", "assistant", "max_tokens"))
        self.assertTrue(data["content"][0]["text"].startswith("system: s"))
        events = self.named("/v1/messages", body)
        self.assertEqual([events[i]["type"] for i in (0, 1, -3, -2, -1)], ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
        self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), data["content"][0]["text"])
        self.assertEqual(events[-2]["usage"]["output_tokens"], 12)
        stopped = self.server.ok("/v1/messages", {**body, "stop_sequences": ["zzz", "em: "]})
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", "em: "))
        status, refusal = self.server.post("/v1/messages", {"messages": self.messages})
        self.assertEqual((status, refusal["type"], refusal["error"]["type"]), (400, "error", "invalid_request_error"))
        self.assertIn("'max_tokens' is missing", refusal["error"]["message"])

    def test_messages_with_tools(self):
        tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in self.TOOLS]
        asked = [{"role": "user", "content": "I look." + self.CALL}]
        body = {"messages": asked, "tools": tools, "max_tokens": 4000, "temperature": 0}
        data = self.server.ok("/v1/messages", body)
        self.assertEqual(([block["type"] for block in data["content"][:2]], data["stop_reason"]), (["text", "tool_use"], "tool_use"))
        self.assertEqual((data["content"][1]["name"], data["content"][1]["input"]), ("get_weather", {"city": "Paris"}))
        events = self.named("/v1/messages", body)
        begun = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        self.assertIn("tool_use", begun)
        json_parts = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
        self.assertEqual(json.loads("".join(json_parts)), {"city": "Paris"})
        self.assertEqual(events[-2]["delta"]["stop_reason"], "tool_use")
        forced = self.server.ok("/v1/messages", {**body, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
        self.assertEqual([block["type"] for block in forced["content"]], ["tool_use"])
        results = asked + [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, data["content"][1]]},
                           {"role": "user", "content": [{"type": "tool_result", "tool_use_id": data["content"][1]["id"], "content": "21"},
                                                        {"type": "text", "text": "So?"}]}]
        text = self.server.ok("/v1/messages", {**body, "messages": results, "tools": [], "system": "s"})["content"][0]["text"]
        self.assertIn('"arguments": {"city":"Paris"}}', text)
        self.assertIn("user: <tool_response>\n21\n</tool_response>\nuser: So?\n", text)
        for more, words in [({"tool_choice": {"type": "tool", "name": "other"}}, "no such function"),
                            ({"tool_choice": {"type": "some"}}, "auto, any, tool or none"),
                            ({"tools": [{"name": "f f"}]}, "'tools[0].name' must be"),
                            ({"messages": [{"role": "critic", "content": "x"}]}, "'messages[0].role' must be"),
                            ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'messages[0].content[0]' is of the type image: this model takes only text, no images"),
                            ({"thinking": {"type": "hard"}}, "'thinking.type' must be")]:
            status, data = self.server.post("/v1/messages", {**body, **more})
            self.assertEqual((status, data["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn(words, data["error"]["message"])

    def test_messages_that_fill_the_cache(self):
        body = {"messages": self.messages, "max_tokens": 0, "thinking": {"type": "between_tools"}}
        data = self.server.ok("/v1/messages", body)
        self.assertEqual((data["content"], data["stop_reason"], data["usage"]["output_tokens"]), ([], "max_tokens", 0))
        events = self.named("/v1/messages", body)
        self.assertEqual([event["type"] for event in events], ["message_start", "message_delta", "message_stop"])
        self.assertEqual(events[1]["delta"]["stop_reason"], "max_tokens")
        change = {"type": "tool_addition", "tool": {"type": "tool_reference", "tool_name": "f"}}
        changed = {**body, "messages": [*self.messages, {"role": "system", "content": [change]}]}
        self.assertEqual(self.server.ok("/v1/messages/count_tokens", changed), self.server.ok("/v1/messages/count_tokens", body))

    def test_an_agents_messages(self):
        """As Claude Code sends them: fields and tools of Anthropic's servers are passed over."""
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
        tools = [search, {"name": "get_weather", "input_schema": {"type": "object"}, "defer_loading": False, "cache_control": {"type": "ephemeral"}}]
        more = {"context_management": {"edits": []}, "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}, "service_tier": "auto",
                "betas": ["x"], "metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]}
        asked = [*self.messages, {"role": "system", "content": "none"}, {"role": "assistant", "content": [
                     {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                     {"type": "tool_use", "id": "t1", "name": "get_weather", "input": "Ro"}, {"type": "tool_use", "id": "t2", "name": "get_weather", "input": None}]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}, {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "image"}]}]}]
        body = {"messages": asked, "tools": tools, "tool_choice": {"type": "tool", "name": "web_search"}, **more}
        count = self.server.ok("/v1/messages/count_tokens", body)["input_tokens"]
        events = self.named("/v1/messages", {**body, "max_tokens": 20})
        self.assertEqual((events[0]["message"]["usage"]["input_tokens"], events[-1]["type"]), (count, "message_stop"))
        usage = events[-2]["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], count)
        self.server.ok("/v1/messages", {**body, "messages": self.messages, "tools": [search], "max_tokens": 4})
        status, long = self.server.post("/v1/messages", {"messages": [{"role": "user", "content": "x" * 70000}], "max_tokens": 4})
        self.assertEqual((status, long["error"]["type"]), (400, "invalid_request_error"))
        self.assertRegex(long["error"]["message"], r"^prompt is too long: 70\d\d\d tokens > 65535 maximum$")

    def test_an_answer_that_is_begun_goes_on(self):
        asked = [*self.messages, {"role": "assistant", "content": "so"}]
        body = {"messages": asked, "max_tokens": 100, "temperature": 0}
        text = self.server.ok("/v1/messages", body)["content"][0]["text"]
        chat = self.server.ok("/v1/chat/completions", {**body, "continue_final_message": True})
        self.assertEqual(text, chat["choices"][0]["message"]["content"])

    def test_thinking_may_be_hidden(self):
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\n"}]
        body = {"messages": chat, "max_tokens": 200, "temperature": 0, "reasoning_format": "think", "thinking": {"type": "enabled", "budget_tokens": 100}}
        [shown] = self.server.ok("/v1/messages", body)["content"]
        self.assertEqual((shown["type"], shown["thinking"]), ("thinking", "user: x\nassistant: <think>\n"))
        body["thinking"]["display"] = "omitted"
        self.assertEqual(self.server.ok("/v1/messages", body)["content"], [{**shown, "thinking": ""}])
        starts = [event["type"] for event in self.named("/v1/messages", body)]
        self.assertNotIn("content_block_delta", starts)

    def test_what_follows_a_long_call_stands_behind_it(self):
        long = json.dumps({"name": "get_weather", "arguments": {"city": "x" * 3000}})
        asked = [{"role": "user", "content": f"One<tool_call>{long}</tool_call>Two<tool_call>{long}</tool_call>Three"}]
        tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]
        events = self.named("/v1/messages", {"messages": asked, "tools": tools, "max_tokens": 9000, "temperature": 0})
        kinds = {event["index"]: event["content_block"]["type"] for event in events if event["type"] == "content_block_start"}
        self.assertEqual(list(kinds.values()), ["text", "tool_use", "text", "tool_use", "text"])
        whole = self.server.ok("/v1/messages", {"messages": asked, "tools": tools, "max_tokens": 9000, "temperature": 0})
        self.assertEqual([block["type"] for block in whole["content"]], list(kinds.values()))
        parts = {"text": "text_delta", "tool_use": "input_json_delta"}
        for event in events:
            if event["type"] == "content_block_delta":
                self.assertEqual(event["delta"]["type"], parts[kinds[event["index"]]])

    def test_count_of_a_messages_tokens(self):
        body = {"model": "echo", "system": "s", "messages": self.messages}
        count = self.server.ok("/v1/messages/count_tokens", body)["input_tokens"]
        usage = self.server.ok("/v1/messages", {**body, "max_tokens": 1})["usage"]
        self.assertEqual(count, usage["input_tokens"] + usage["cache_read_input_tokens"])
        tokens = self.server.ok("/tokenize", {"messages": [{"role": "system", "content": "s"}] + self.messages})
        self.assertEqual((tokens["count"], len(tokens["tokens"])), (count, count))

    def test_tokens_of_a_chat(self):
        call = {"id": "abc123XYZ", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        messages = self.messages + [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "abc123XYZ", "content": "21"}]
        for body in [{"messages": messages}, {"messages": messages, "tools": self.TOOLS, "tool_choice": "none"},
                     {"messages": self.messages, "continue_final_message": True, "chat_template_kwargs": {"enable_thinking": False}}]:
            with self.subTest(body):
                answer = self.server.ok("/tokenize", body)
                chat = self.server.ok("/v1/chat/completions", {**body, "max_tokens": 1})
                self.assertEqual((answer["count"], len(answer["tokens"])), (chat["usage"]["prompt_tokens"],) * 2)
        for body, words in [({"text": ["a", "b"]}, "one text"), ({"text": "a", "messages": messages}, "both"),
                            ({"messages": []}, "'messages' must be"), ({}, "'text' is missing"),
                            ({"messages": messages, "tools": [{}]}, "tools[0]")]:
            self.refused("/tokenize", body, words)

    def test_text_that_json_must_escape(self):
        text = 'a"b\\c\nd\x01é😀'
        data = self.server.ok("/v1/completions", {"prompt": text, "max_tokens": 64, "ignore_eos": True, "temperature": 0})
        self.assertIn(text, data["choices"][0]["text"])


if __name__ == "__main__":
    unittest.main()

"""Requests for other servers: names, formats beside tools, budgets, pages of other sites, positions of errors."""
import subprocess
import unittest

from support import PROGRAM, Server, ServerTest

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASKED = [{"role": "user", "content": "hello there"}]
THINKING = {"messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "<think>\n"}],
            "continue_final_message": True, "reasoning_format": "think", "temperature": 0}


class Echo(ServerTest):
    options = {"model": "builtin:echo", "cors": "https://page.example,http://localhost:3000"}

    def chat(self, **more):
        return self.server.ok("/v1/chat/completions", {"messages": ASKED, **more})

    def test_a_format_beside_tools(self):
        forced = {"input": "hello", "tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "f"},
                  "text": {"format": {"type": "json_object"}}}
        self.assertEqual([item["type"] for item in self.server.ok("/v1/responses", forced)["output"]], ["function_call"])
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
        for seed in range(4):
            more = {"tools": TOOLS, "seed": seed, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
            choice = self.chat(**more)["choices"][0]
            self.assertIn(choice["finish_reason"], ["stop", "tool_calls"])
            if choice["finish_reason"] == "stop":
                self.assertIn('"a"', choice["message"]["content"])

    def test_undeclared_keys(self):
        for seed in range(6):
            choice = self.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed, max_tokens=400)["choices"][0]
            self.assertRegex(choice["message"]["tool_calls"][0]["function"]["arguments"], r'^\{"x": -?\d+\}$')

    def test_budgets_of_reasoning(self):
        free = self.server.ok("/v1/chat/completions", {**THINKING, "max_tokens": 60, "ignore_eos": True})
        self.assertEqual(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 60)
        for name in ["max_reasoning_tokens", "reasoning_budget", "thinking_token_budget", "thinking_budget"]:
            data = self.server.ok("/v1/chat/completions", {**THINKING, name: 5, "max_tokens": 60, "ignore_eos": True})
            message, usage = data["choices"][0]["message"], data["usage"]["completion_tokens_details"]
            self.assertEqual((message["reasoning_content"], usage["reasoning_tokens"]), ("user:", 5 + len("</think>")), name)
            self.assertGreater(len(message["content"]), 0)
        with_logprobs = self.server.ok("/v1/chat/completions", {**THINKING, "max_reasoning_tokens": 5, "max_tokens": 20, "ignore_eos": True, "logprobs": True})
        self.assertEqual(len(with_logprobs["choices"][0]["logprobs"]["content"]), 20)
        whole = self.server.ok("/v1/chat/completions", {**THINKING, "reasoning_budget": -1, "max_tokens": 60, "ignore_eos": True})
        self.assertEqual(whole["choices"][0]["message"], free["choices"][0]["message"])

    def test_budgets_beside_drafts_and_calls(self):
        body = {**THINKING, "max_reasoning_tokens": 17, "max_tokens": 80, "ignore_eos": True}
        plain = self.server.ok("/v1/chat/completions", {**body, "speculation": "off"})
        drafted = self.server.ok("/v1/chat/completions", {**body, "speculation": "lookup"})
        self.assertEqual(drafted["choices"], plain["choices"])
        self.assertGreater(drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 0)
        calls = {**THINKING, "temperature": 1, "max_reasoning_tokens": 9, "tools": TOOLS, "tool_choice": "required", "max_tokens": 300}
        for seed in range(4):
            message = self.server.ok("/v1/chat/completions", {**calls, "seed": seed})["choices"][0]["message"]
            self.assertLessEqual(len(message["reasoning_content"]), 9)
            self.assertEqual(message["tool_calls"][0]["function"]["name"], "f")

    def test_efforts(self):
        for effort in ["none", "minimal", "low", "medium", "high", "xhigh"]:
            self.chat(reasoning_effort=effort)
        for more in [{"reasoning_effort": ""}, {"reasoning_effort": "default"}, {"reasoning_format": "auto"}, {"reasoning_format": "deepseek"}]:
            self.assertEqual(self.chat(**more, temperature=0)["choices"], self.chat(temperature=0)["choices"])
        self.refused("/v1/chat/completions", {"messages": ASKED, "reasoning_effort": "much"}, "'reasoning_effort' must be none")

    def test_the_best_of_several(self):
        body = {"prompt": "ab", "max_tokens": 6, "seed": 3, "temperature": 2, "ignore_eos": True}
        all_of = self.server.ok("/v1/completions", {**body, "n": 5, "logprobs": 0})["choices"]
        means = [sum(c["logprobs"]["token_logprobs"]) for c in all_of]
        wanted = [all_of[i]["text"] for i in sorted(range(5), key=lambda i: -means[i])[:2]]
        best = self.server.ok("/v1/completions", {**body, "n": 2, "best_of": 5})
        self.assertEqual([c["text"] for c in best["choices"]], wanted)
        self.assertEqual([(c["index"], c["logprobs"]) for c in best["choices"]], [(0, None), (1, None)])
        self.assertEqual(best["usage"]["completion_tokens"], 30)
        self.refused("/v1/completions", {**body, "n": 3, "best_of": 2}, "'best_of' must not be less")
        self.refused("/v1/completions", {**body, "best_of": 2, "stream": True}, "'best_of' is for whole answers")

    def test_nothing_is_kept(self):
        words = "'previous_response_id' is not supported: this server keeps no answers"
        self.refused("/v1/responses", {"input": "hello", "previous_response_id": "resp_1"}, words)
        for store in [True, False]:
            answer = self.server.ok("/v1/responses", {"input": "hello", "store": store, "previous_response_id": None})
            self.assertFalse(answer["store"])
        for method in ["GET", "DELETE"]:
            status, _, data = self.server.request(method, "/v1/responses/resp_1")
            self.assertEqual((status, "keeps no answers" in data["error"]["message"]), (404, True))

    def test_the_middle_needs_a_model_for_it(self):
        self.refused("/v1/completions", {"prompt": "a", "suffix": "b"}, "tokens to fill in the middle")
        self.refused("/v1/completions", {"prompt": [1], "suffix": "b"}, "'suffix' needs prompts that are texts")
        self.server.ok("/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})

    def test_models(self):
        _, data = self.server.get("/v1/models")
        [model] = data["data"]
        self.assertGreater(model["created"], 1500000000)
        self.assertEqual((model["type"], model["display_name"], model["object"]), ("model", "echo", "model"))
        self.assertRegex(model["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((data["has_more"], data["first_id"], data["last_id"]), (False, "echo", "echo"))
        self.assertEqual(self.server.get("/v1/models/x")[1]["error"]["code"], "model_not_found")
        status, data = self.server.get("/v1/models/x", headers={"anthropic-version": "2023-06-01"})
        self.assertEqual((status, data["type"], data["error"]["type"]), (404, "error", "not_found_error"))

    def test_texts_of_tokens(self):
        ids = self.server.ok("/tokenize", {"text": "héllo"})["tokens"]
        self.assertEqual(self.server.ok("/detokenize", {"tokens": ids})["prompt"], "héllo")
        self.assertEqual(self.server.ok("/detokenize", {"tokens": ids, "model": "echo"})["content"], "héllo")
        for name in ["prompt", "content"]:  # vLLM's and llama.cpp's
            self.assertEqual(self.server.ok("/tokenize", {name: "héllo"})["tokens"], ids)
        self.assertEqual(self.server.ok("/tokenize", {"text": "héllo", "add_special_tokens": False})["tokens"], [i for i in ids if i < 256])
        self.refused("/tokenize", {"text": "a", "prompt": "b", "messages": ASKED}, "'text' and 'messages' are both there")
        self.refused("/detokenize", {"tokens": [[5], [6]]}, "one list of token ids")
        self.assertEqual(self.server.ok("/detokenize", {"tokens": []})["content"], "")
        self.assertEqual(self.server.ok("/tokenize", {"text": "a", "add_special": False, "add_special_tokens": True}), self.server.ok("/tokenize", {"text": "a"}))
        answer = self.server.ok("/v1/completions", {"prompt": "héé日", "echo": True, "logprobs": 0, "max_tokens": 2, "temperature": 0})["choices"][0]
        # Tokens are bytes, and all of a character's but the first are after its place. The ninth is the end of the prompt.
        self.assertEqual(answer["logprobs"]["text_offset"][:8], [0, 1, 2, 2, 3, 3, 4, 4])
        self.refused("/detokenize", {"tokens": [999999]}, "999999")

    def test_several_names_of_one_thing(self):
        for path, more in [("/v1/completions", {"prompt": "a", "repetition_penalty": 1, "repeat_penalty": 1}), ("/v1/completions", {"prompt": "a", "repetition_penalty": 1, "repeat_penalty": 1000}),
                           ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 9, "max_completion_tokens": 2, "tools": TOOLS, "functions": [FUNCTION]}),
                           ("/v1/chat/completions", {"messages": ASKED, "thinking_budget": 1, "max_reasoning_tokens": 2, "reasoning_budget": "x"}),
                           ("/v1/messages", {"messages": ASKED, "max_tokens": 99, "output_config": {"format": {"type": "json_schema", "schema": {"const": 1}}},
                                             "output_format": {"type": "json_schema", "schema": {"const": 2}}})]:
            answer = self.server.ok(path, more)
            if "output_format" in more:
                self.assertEqual(answer["content"][0]["text"], "1")
            if "max_completion_tokens" in more:
                self.assertEqual(answer["usage"]["completion_tokens"], 2)

    def test_prompts_that_are_too_long(self):
        frame = r"This model's maximum context length is 65536 tokens\. However, your (%s) resulted in 70\d\d\d (tokens|bytes)\. Please reduce the length of the \1\."
        long = "x" * 70000
        for path, body, kind in [("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"), ("/v1/responses", {"input": long}, "messages"),
                                 ("/v1/completions", {"prompt": long}, "prompt"), ("/v1/completions", {"prompt": [65] * 70000}, "prompt"),
                                 ("/api/chat", {"model": "echo", "messages": [{"role": "user", "content": long}]}, "messages")]:
            status, data = self.server.post(path, body)
            if path != "/api/chat":
                self.assertEqual(data["error"]["code"], "context_length_exceeded")
            self.assertRegex(data["error"] if path == "/api/chat" else data["error"]["message"], "^" + frame % kind + "$")
            self.assertEqual(status, 400)

    def test_a_prompt_of_nothing_begins_a_text(self):
        usage = self.server.ok("/v1/completions", {"prompt": "", "max_tokens": 1})["usage"]
        self.assertEqual(usage["prompt_tokens"], 1)

    def test_what_monitors_ask(self):
        self.assertRegex(self.server.get("/version")[1]["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(self.server.get("/ping")[1], {"status": "ok"})
        props = self.server.get("/props")[1]
        self.assertEqual((props["model_alias"], props["total_slots"]), ("echo", 32))
        self.assertGreater(props["default_generation_settings"]["n_ctx"], 0)

    def test_pages_of_other_sites(self):
        for origin in ["https://page.example", "http://localhost:3000"]:
            status, headers, _ = self.server.request("POST", "/tokenize", {"text": "a"}, headers={"Origin": origin})
            self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Vary"]), (200, origin, "Origin"))
            status, headers, _ = self.server.request("OPTIONS", "/v1/chat/completions", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"})
            self.assertEqual((status, "POST" in headers["Access-Control-Allow-Methods"], headers["Content-Length"]), (204, True, None))
        for origin in ["https://other.example", "https://page.example.other", "null"]:
            status, headers, _ = self.server.request("POST", "/tokenize", {"text": "a"}, headers={"Origin": origin})
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (403, None))

    def test_errors_have_a_place(self):
        for body, words in [(b'{"prompt": "a",\n "n": }', "(line 2, column 7)"), (b'{"prompt": "a"} x', "column 17"), (b'{"a": "\x01"}', "(line 1, column 8)")]:
            self.refused("/v1/completions", body, words)


class Others(unittest.TestCase):
    def test_the_demo_model_chats(self):
        server = Server()
        message = server.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": "17+25="}], "temperature": 0})["choices"][0]["message"]
        self.assertEqual(message["content"], "42")
        server.stop()

    def test_a_bound_for_all(self):
        server = Server(model="builtin:echo", reasoning_budget=3, closed_schemas="none", cors="*")
        data = server.ok("/v1/chat/completions", {**THINKING, "max_tokens": 60, "ignore_eos": True})
        self.assertEqual(data["choices"][0]["message"]["reasoning_content"], "use")
        status, headers, _ = server.request("GET", "/v1/models", headers={"Origin": "https://any.example"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://any.example"))
        server.stop()

    def test_sizes_and_names_of_options(self):
        for arguments, words in [(["--memory-limit", "8X"], "--memory-limit must be a number"), (["--kv-cache", "99999999T"], "--kv-cache must be"),
                                 (["--memory-limit", "1K"], "--memory-limit"), (["--context", "900K"], "--context"),
                                 (["--model", "/nowhere/kv_type"], "'/nowhere/kv_type'")]:
            done = subprocess.run([PROGRAM, "--port", "0", *arguments], capture_output=True, text=True, timeout=60)
            self.assertIn(words, done.stderr)
            self.assertIn(done.returncode, [2, 3])
        server = Server(kv_cache="16M", memory_limit="1g", max_memory="64MiB")
        server.stop()


if __name__ == "__main__":
    unittest.main()

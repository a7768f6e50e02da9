"""/v1/responses: items in and out, tools, reasoning, formats, streams."""
import json
import unittest

from support import ServerTest

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
ASKED = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello there"}]}]


def call(city, number):
    return {"type": "function_call", "call_id": f"abc12345{number}", "name": "get_weather", "arguments": json.dumps({"city": city})}


class Responses(ServerTest):
    options = {"model": "builtin:echo"}
    path = "/v1/responses"

    def streamed(self, body):
        """The response at a stream's end, whose events must tell of each of its items."""
        events = self.named(self.path, body)
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        response = events[-1]["response"]
        self.assertEqual([e["item"] for e in events if e["type"] == "response.output_item.done"], response["output"])
        begun = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
        self.assertEqual(begun, [item["id"] for item in response["output"]])
        for index, item in enumerate(response["output"]):
            own = [event for event in events if event.get("item_id") == item["id"]]
            self.assertEqual({event["output_index"] for event in own}, {index})
            deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            done = [event.get("text", event.get("arguments")) for event in own if event["type"].endswith((".text.done", "_text.done", "arguments.done"))]
            self.assertEqual((deltas, done), (text, [text]))
        return response

    def plain(self, response):
        """The items of a response without their ids."""
        return [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]

    def test_text(self):
        body = {"input": "hello there", "instructions": "s", "max_output_tokens": 12, "ignore_eos": True, "temperature": 0}
        data = self.server.ok(self.path, body)
        [item] = data["output"]
        self.assertEqual((item["type"], item["role"], item["status"]), ("message", "assistant", "incomplete"))
        self.assertTrue(item["content"][0]["text"].startswith("system: s"))
        self.assertEqual((data["status"], data["incomplete_details"]["reason"]), ("incomplete", "max_output_tokens"))
        self.assertEqual((data["instructions"], data["max_output_tokens"], data["tools"], data["tool_choice"]), ("s", 12, [], "auto"))
        streamed = self.streamed(body)
        self.assertEqual((self.plain(streamed), streamed["status"]), (self.plain(data), "incomplete"))
        other = {**body, "instructions": [{"type": "input_text", "text": "s"}], "input": ASKED}
        self.assertEqual(self.plain(self.server.ok(self.path, other)), self.plain(data))

    def test_calls_are_told_apart(self):
        body = {"input": "I look." + CALL, "tools": TOOLS, "temperature": 0}
        data = self.server.ok(self.path, body)
        [made] = [item for item in data["output"] if item["type"] == "function_call"]
        self.assertEqual((data["output"][0]["type"], data["status"]), ("message", "completed"))
        self.assertEqual((made["name"], json.loads(made["arguments"]), len(made["call_id"])), ("get_weather", {"city": "Paris"}, 9))
        self.assertEqual((data["tools"], data["parallel_tool_calls"]), (TOOLS, True))
        streamed = self.streamed({**body, "seed": 1})
        items = {item["type"]: item for item in streamed["output"]}
        self.assertEqual(json.loads(items["function_call"]["arguments"]), {"city": "Paris"})
        # A whole answer has one text, with a line break in place of the call.
        whole, parts = ["\n".join(item["content"][0]["text"] for item in answer["output"] if item["type"] == "message") for answer in (data, streamed)]
        self.assertEqual(parts, whole)

    def test_tools_of_other_kinds_are_left_out(self):
        function, others = TOOLS[0], [{"type": "web_search"}, {"type": "custom", "name": "patch"}, {"type": "mcp", "server_label": "x"}]
        data = self.server.ok(self.path, {"input": "I look." + CALL, "tools": [*others, function], "tool_choice": {"type": "custom", "name": "patch"}, "temperature": 0})
        self.assertEqual((data["output"][1]["name"], data["tools"]), ("get_weather", [*others, function]))
        for choice in ["auto", "required", {"type": "web_search"}]:
            [item] = self.server.ok(self.path, {"input": "hello", "tools": others, "tool_choice": choice, "temperature": 0})["output"]
            self.assertEqual(item["type"], "message")
        spaces = [function, {"type": "namespace", "name": "home", "tools": [function]}]
        choice = {"type": "function", "namespace": "home", "name": "get_weather"}
        [made] = self.server.ok(self.path, {"input": "hello", "tools": spaces, "tool_choice": choice, "max_output_tokens": 300})["output"]
        self.assertEqual((made["namespace"], made["name"]), ("home", "get_weather"))
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
        [made] = self.server.ok(self.path, {"input": "hello", "tools": [{"type": "function", "name": "f"}, function], "tool_choice": allowed, "max_output_tokens": 300})["output"]
        self.assertEqual(made["name"], "get_weather")

    def test_tools_of_items(self):
        function, choice = TOOLS[0], {"type": "function", "name": "get_weather"}
        space = {"type": "namespace", "name": "home", "tools": [function]}
        more = {"type": "additional_tools", "role": "developer", "tools": [function]}
        found = [{"type": "tool_search_call", "call_id": "s", "arguments": {}}, {"type": "tool_search_output", "call_id": "s", "tools": [space, function]}]
        plain = self.server.ok(self.path, {"input": ASKED, "tools": [function], "max_output_tokens": 1})["usage"]["input_tokens"]
        self.assertEqual(self.server.ok(self.path, {"input": [more, *ASKED], "max_output_tokens": 1})["usage"]["input_tokens"], plain)
        for items, tools in [([more], []), (found, []), ([more, *found], [space])]:
            [item] = self.server.ok(self.path, {"input": [*items, *ASKED], "tools": tools, "tool_choice": choice, "max_output_tokens": 300})["output"]
            self.assertEqual(item["name"], "get_weather")

    def test_items_of_other_kinds_are_passed_over(self):
        others = [{"type": "item_reference", "id": "msg_1"}, {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                  {"type": "reasoning", "summary": [], "encrypted_content": "x"}, {"type": "compaction", "encrypted_content": "x"}]
        texts = [self.server.ok(self.path, {"input": [*items, *ASKED], "temperature": 0})["output"][0]["content"][0]["text"] for items in ([], others)]
        self.assertEqual(texts[0], texts[1])
        calls = [{"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"}, {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
                 {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{"}, {"type": "function_call_output", "output": [{"stdout": "x"}]}, {"role": "user"}]
        text = self.server.ok(self.path, {"input": [*ASKED, *calls], "temperature": 0})["output"][0]["content"][0]["text"]
        for words in ['"patch", "arguments": {"input":"x"}', "done", '"f", "arguments": {"invalid_json":"{"}', '[{"stdout":"x"}]']:
            self.assertIn(words, text)

    def test_what_follows_a_long_call_stands_behind_it(self):
        long = json.dumps({"name": "get_weather", "arguments": {"city": "x" * 3000}})
        body = {"input": f"One<tool_call>{long}</tool_call>Two<tool_call>{long}</tool_call>Three", "tools": TOOLS, "temperature": 0}
        output = self.streamed(body)["output"]
        kinds = ["message", "function_call", "message", "function_call", "message"]
        self.assertEqual([item["type"] for item in output], kinds)
        self.assertEqual([item["type"] for item in self.server.ok(self.path, body)["output"]], kinds)
        calls = [item for item in output if item["type"] == "function_call"]
        self.assertEqual([json.loads(item["arguments"]) for item in calls], [{"city": "x" * 3000}] * 2)
        texts = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
        self.assertEqual([texts.count(text) for text in ("One", "Two", "Three")], [1, 1, 1])

    def test_calls_that_must_come(self):
        body = {"input": ASKED, "tools": TOOLS, "parallel_tool_calls": False, "max_output_tokens": 300}
        for choice in ["required", {"type": "function", "name": "get_weather"}]:
            data = self.server.ok(self.path, {**body, "tool_choice": choice})
            self.assertEqual(([item["type"] for item in data["output"]], data["tool_choice"]), (["function_call"], choice))
            self.assertIn(json.loads(data["output"][0]["arguments"])["city"], ["Paris", "Rome"])
        cut = self.streamed({**body, "tool_choice": "required", "max_output_tokens": 42, "seed": 3})
        self.assertEqual((cut["status"], cut["output"][-1]["status"]), ("incomplete", "incomplete"))
        self.refused(self.path, {**body, "tool_choice": {"type": "function", "name": "other"}}, "no such function")

    def test_a_conversation_with_calls(self):
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
        results = [{"type": "function_call_output", "call_id": "abc123451", "output": "21"},
                   {"type": "function_call_output", "call_id": "abc123452", "output": [{"type": "input_text", "text": "25"}]}]
        body = {"input": ASKED + [said, call("Paris", 1), call("Rome", 2)] + results, "temperature": 0}
        [item] = self.server.ok(self.path, body)["output"]
        calls = [{"id": made["call_id"], "type": "function", "function": {"name": made["name"], "arguments": made["arguments"]}}
                 for made in [call("Paris", 1), call("Rome", 2)]]
        messages = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "I look.", "tool_calls": calls},
                    {"role": "tool", "tool_call_id": "abc123451", "content": "21"}, {"role": "tool", "tool_call_id": "abc123452", "content": "25"}]
        chat = self.server.ok("/v1/chat/completions", {"messages": messages, "temperature": 0})
        self.assertEqual(item["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertIn('"arguments": {"city":"Rome"}}', item["content"][0]["text"])

    def test_reasoning_is_told_apart(self):
        asked = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\n"}]
        body = {"input": asked, "continue_final_message": True, "reasoning_format": "think", "temperature": 0}
        data = self.server.ok(self.path, body)
        [item] = data["output"]
        text = "user: x\nassistant: <think>\n"
        self.assertEqual((item["type"], item["summary"], item["content"]), ("reasoning", [], [{"type": "reasoning_text", "text": text}]))
        self.assertEqual(self.plain(self.streamed(body)), self.plain(data))
        # The item is sent back as the beginning of the assistant's turn.
        said = {"role": "assistant", "content": "y"}
        again = {"input": [asked[0], item, said, {"role": "user", "content": "z"}], "temperature": 0}
        without = {**again, "input": [asked[0], said, {"role": "user", "content": "z"}]}
        texts = [self.server.ok(self.path, body)["output"][0]["content"][0]["text"] for body in (again, without)]
        self.assertEqual(texts[0], texts[1])  # the template of this model shows no reasoning
        for effort in ["none", "high", None]:
            self.server.ok(self.path, {"input": "x", "reasoning": {"effort": effort}, "max_output_tokens": 4, "chat_template_kwargs": {}})

    def test_answers_of_a_format(self):
        text = {"format": {"type": "json_schema", "name": "place", "strict": True, "schema": SCHEMA}}
        data = self.server.ok(self.path, {"input": ASKED, "text": text, "max_output_tokens": 300})
        self.assertIn(json.loads(data["output"][0]["content"][0]["text"])["city"], ["Paris", "Rome"])
        self.assertEqual(data["text"], text)

    def test_an_agents_first_request(self):
        """As Codex sends it; and probes of nothing."""
        more = {"include": ["reasoning.encrypted_content"], "client_metadata": {"x": "0"}, "prompt_cache_key": "k", "store": False, "text": {"verbosity": "low"},
                "reasoning": {"effort": "medium", "summary": "auto"}, "tool_choice": "auto", "parallel_tool_calls": True, "service_tier": "flex",
                "prompt_cache_retention": "24h", "max_tool_calls": 3, "stream_options": {"include_obfuscation": False}, "background": False}
        response = self.streamed({"input": ASKED, "instructions": "s", "tools": TOOLS, "temperature": 0, "max_output_tokens": -1, **more})
        echoed = {name: response[name] for name in ("reasoning", "prompt_cache_key", "service_tier", "max_tool_calls", "tool_choice", "instructions", "truncation")}
        self.assertEqual(echoed, {**{name: more[name] for name in ("reasoning", "prompt_cache_key", "service_tier", "max_tool_calls", "tool_choice")},
                                  "instructions": "s", "truncation": "disabled"})
        self.assertEqual(response["text"], {"verbosity": "low", "format": {"type": "text"}})
        for body in [{"input": []}, {"input": ""}, {"input": [], "instructions": "s"}]:
            self.server.ok(self.path, {**body, "max_output_tokens": 1})

    def test_what_is_refused(self):
        for more, words in [
            ({"previous_response_id": "resp_1"}, "'previous_response_id' is not supported"),
            ({"conversation": "conv_1"}, "'conversation' is not supported"),
            ({"input": None}, "'input' is missing"),
            ({"input": 5}, "'input' must be"),
            ({"input": [5]}, "'input[0]' must be an object"),
            ({"input": [{"role": "critic", "content": "x"}]}, "'input[0].role'"),
            ({"input": [{"role": "user", "content": 5}]}, "'input[0].content'"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "no images"),
            ({"max_output_tokens": 0}, "'max_output_tokens' must be a whole number from 1 to"),
            ({"tools": {}}, "'tools' must be a list"),
            ({"tools": [{"type": "function"}]}, "tools[0].name"),
            ({"tools": [*TOOLS, {"type": "function", "name": "f", "parameters": []}]}, "'tools[1].parameters' must be an object"),
            ({"tools": TOOLS * 2}, "'tools[1].name' is there twice"),
            ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "'tool_choice' must be"),
            ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
            ({"tool_choice": "required"}, "no such function"),
            ({"reasoning": {"effort": 5}}, "'reasoning.effort'"),
            ({"text": {"format": {"type": "xml"}}}, "'text.format'"),
        ]:
            with self.subTest(more):
                self.refused(self.path, {"input": "hello", **more}, words)


class Kept(ServerTest):
    options = {"model": "builtin:echo", "keep_responses": 30000}
    path = "/v1/responses"

    def test_a_conversation_goes_on(self):
        body = {"input": "hello", "instructions": "be", "temperature": 0}
        first = self.server.ok(self.path, body)
        self.assertEqual((first["store"], first["previous_response_id"]), (True, None))
        self.assertEqual(self.server.get(self.path + "/" + first["id"]), (200, first))
        said = {"role": "assistant", "content": first["output"][0]["content"][0]["text"]}
        for more in [{"input": "again"}, {"input": ASKED}]:
            second = self.server.ok(self.path, {**more, "previous_response_id": first["id"], "temperature": 0})
            self.assertEqual(second["previous_response_id"], first["id"])
            new = [{"role": "user", "content": "again"}] if more["input"] == "again" else ASKED
            whole = self.server.ok(self.path, {"input": [{"role": "user", "content": "hello"}, said, *new], "temperature": 0})
            self.assertEqual(second["output"][0]["content"], whole["output"][0]["content"])
        # Streams are kept too, and the conversation has all turns.
        events = self.named(self.path, {"input": "third", "previous_response_id": second["id"], "temperature": 0})
        third = events[-1]["response"]
        self.assertEqual(self.server.get(self.path + "/" + third["id"]), (200, third))
        text = third["output"][0]["content"][0]["text"]
        self.assertTrue(all(f"user: {word}" in text for word in ["hello", "hello there", "third"]), text)

    def test_references_are_what_is_kept(self):
        first = self.server.ok(self.path, {"input": "hello", "temperature": 0})["output"][0]
        said = {"role": "assistant", "content": first["content"][0]["text"]}
        ask = lambda item: self.server.ok(self.path, {"input": [*ASKED, item, *ASKED], "temperature": 0})["output"][0]["content"][0]["text"]
        for reference in [{"type": "item_reference", "id": first["id"]}, {"id": first["id"]}]:
            self.assertEqual(ask(reference), ask(said))
        self.assertNotEqual(ask({"id": "msg_1"}), ask(said))

    def test_calls_are_kept(self):
        first = self.server.ok(self.path, {"input": "I look." + CALL, "tools": TOOLS, "temperature": 0})
        [made] = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "21 degrees"}
        second = self.server.ok(self.path, {"input": [result], "previous_response_id": first["id"], "tools": TOOLS, "temperature": 0, "max_output_tokens": 4000})
        self.assertIn("21 degrees", json.dumps(second["output"]))

    def test_they_go(self):
        made = self.server.ok(self.path, {"input": "hello"})
        status, _, data = self.server.request("DELETE", self.path + "/" + made["id"])
        self.assertEqual((status, data), (200, {"id": made["id"], "object": "response", "deleted": True}))
        for method in ["GET", "DELETE"]:
            self.assertEqual(self.server.request(method, self.path + "/" + made["id"])[0], 404)
        self.refused(self.path, {"input": "x", "previous_response_id": made["id"]}, "there is no response")
        unkept = self.server.ok(self.path, {"input": "hello", "store": False})
        self.assertEqual((unkept["store"], self.server.get(self.path + "/" + unkept["id"])[0]), (False, 404))
        large = self.server.ok(self.path, {"input": "x" * 40000, "max_output_tokens": 1})
        self.assertEqual((large["store"], self.server.get(self.path + "/" + large["id"])[0]), (False, 404))
        old = self.server.ok(self.path, {"input": "old"})["id"]
        for _ in range(40):
            last = self.server.ok(self.path, {"input": "y" * 500})["id"]
        self.assertEqual([self.server.get(self.path + "/" + id)[0] for id in [old, last]], [404, 200])


if __name__ == "__main__":
    unittest.main()

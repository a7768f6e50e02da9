"""The packages `openai` and `anthropic` as clients, where they are installed (they are not needed otherwise)."""
import asyncio
import unittest
from typing import Literal

from support import ServerTest

try:
    import openai
    import pydantic
except ImportError:
    openai = None
try:
    import anthropic
    import pydantic
except ImportError:
    anthropic = None

MESSAGES = [{"role": "user", "content": "hello there"}]
CITIES = ["Paris", "Rome"]

if openai or anthropic:

    class Place(pydantic.BaseModel):
        """Where it is."""

        city: Literal["Paris", "Rome"]
        large: bool


@unittest.skipIf(openai is None, "no package openai here")
class OpenAi(ServerTest):
    options = {"model": "builtin:echo"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)

    def test_chat(self):
        more = {"model": "echo", "messages": MESSAGES, "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True, "priority": 200}}
        whole = self.client.chat.completions.create(**more)
        self.assertTrue(whole.choices[0].message.content.startswith("user: hello"))
        stream = list(self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **more))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in stream[:-1]), whole.choices[0].message.content)
        self.assertEqual(stream[-1].usage.completion_tokens, 16)

    def test_completion_and_models(self):
        done = self.client.completions.create(model="echo", prompt=["ab", "cd"], max_tokens=4, logprobs=1, n=2, extra_body={"ignore_eos": True})
        self.assertEqual(len(done.choices), 4)
        self.assertEqual(len(done.choices[0].logprobs.token_logprobs), 4)
        self.assertEqual([model.id for model in self.client.models.list()], ["echo"])
        self.assertEqual(self.client.models.retrieve("echo").id, "echo")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_responses(self):
        more = {"model": "echo", "input": "hello there", "max_output_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}}
        whole = self.client.responses.create(**more)
        self.assertTrue(whole.output_text.startswith("user: hello"))
        self.assertEqual(whole.usage.output_tokens, 16)
        with self.client.responses.stream(**more) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        self.assertEqual(deltas, whole.output_text)

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]}}}]
        more = {"model": "echo", "messages": MESSAGES, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "seed": 3, "max_tokens": 400}
        whole = self.client.chat.completions.create(**more).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        self.assertEqual(whole.message.tool_calls[0].function.name, "f")
        with self.client.chat.completions.stream(**more) as stream:
            final = stream.get_final_completion().choices[0]
        self.assertEqual(final.message.tool_calls[0].function.arguments, whole.message.tool_calls[0].function.arguments)
        again = MESSAGES + [whole.message, {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "7"}]
        self.assertIn("7", self.client.chat.completions.create(model="echo", messages=again, temperature=0).choices[0].message.content)

    def test_chats_are_parsed(self):
        more = {"model": "echo", "messages": MESSAGES, "seed": 3, "max_tokens": 400}
        place = self.client.chat.completions.parse(response_format=Place, **more).choices[0].message.parsed
        self.assertIn(place.city, CITIES)
        with self.client.chat.completions.stream(response_format=Place, **more) as stream:
            kinds = {event.type for event in stream}
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, place)
        self.assertLessEqual({"content.delta", "content.done"}, kinds)
        tools = [openai.pydantic_function_tool(Place, name="place")]
        call = self.client.chat.completions.parse(tools=tools, tool_choice="required", parallel_tool_calls=False, **more).choices[0].message.tool_calls[0]
        self.assertIn(call.function.parsed_arguments.city, CITIES)
        with self.client.chat.completions.stream(tools=tools, tool_choice="required", parallel_tool_calls=False, **more) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        self.assertEqual([(event.name, event.parsed_arguments) for event in done], [("place", call.function.parsed_arguments)])

    def test_responses_with_tools(self):
        tools = [{"type": "function", "name": "f", "parameters": Place.model_json_schema(), "strict": True}]
        more = {"model": "echo", "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"seed": 3}}
        first = self.client.responses.create(input="hello there", **more)
        [call] = first.output
        self.assertEqual((call.type, call.name, first.status, first.output_text), ("function_call", "f", "completed", ""))
        with self.client.responses.stream(input="hello there", **more) as stream:
            events = list(stream)
            final = stream.get_final_response()
        deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
        self.assertEqual(("".join(event.delta for event in deltas), deltas[-1].snapshot), (call.arguments, call.arguments))
        self.assertEqual((final.output[0].call_id, final.output[0].parsed_arguments["city"]), (call.call_id, Place.model_validate_json(call.arguments).city))
        # The received items are sent back unchanged, followed by the result.
        items = [{"role": "user", "content": "hello there"}, *first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}]
        again = self.client.responses.create(model="echo", input=items, temperature=0)
        self.assertIn("7 degrees", again.output_text)

    def test_responses_are_parsed(self):
        more = {"model": "echo", "input": "hello there", "max_output_tokens": 400, "extra_body": {"seed": 3}}
        whole = self.client.responses.parse(text_format=Place, **more)
        self.assertIn(whole.output_parsed.city, CITIES)
        with self.client.responses.stream(text_format=Place, **more) as stream:
            self.assertEqual(stream.get_final_response().output_parsed, whole.output_parsed)
        tools = [openai.pydantic_function_tool(Place, name="place")["function"] | {"type": "function"}]
        [call] = self.client.responses.parse(tools=tools, tool_choice={"type": "function", "name": "place"}, **more).output
        self.assertIn(call.parsed_arguments["city"], CITIES)

    def test_reasoning_of_responses(self):
        items = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\n"}]
        extra = {"continue_final_message": True, "reasoning_format": "think"}
        with self.client.responses.stream(model="echo", input=items, temperature=0, extra_body=extra) as stream:
            events = list(stream)
            [item] = stream.get_final_response().output
        text = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        self.assertEqual((item.type, item.content[0].text, text), ("reasoning", text, "user: x\nassistant: <think>\n"))
        self.client.responses.create(model="echo", input=[items[0], item, {"role": "user", "content": "y"}])

    def test_prompt_logprobs(self):
        done = self.client.completions.create(model="echo", prompt="abc", max_tokens=1, extra_body={"prompt_logprobs": 1})
        self.assertIsNone(done.choices[0].prompt_logprobs[0])
        chat = self.client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=1, extra_body={"prompt_logprobs": 1})
        self.assertEqual(len(chat.prompt_logprobs), chat.usage.prompt_tokens)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="echo", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f f"}}])
        self.assertIn("tools[0].function.name", str(caught.exception))


@unittest.skipIf(openai is None, "no package openai here")
class OpenAiDemo(ServerTest):
    def test_32_streams_at_once_are_as_each_alone(self):
        base_url = f"http://127.0.0.1:{self.server.port}/v1"
        request = {"model": "bn-demo", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 1, "extra_body": {"ignore_eos": True}}

        async def stream(client, seed):
            chunks = await client.completions.create(stream=True, seed=seed, **request)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        async def together():
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(stream(client, seed) for seed in range(32)))

        texts = asyncio.run(together())
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            for seed, text in enumerate(texts):
                self.assertEqual(text, client.completions.create(seed=seed, **request).choices[0].text, seed)
        self.assertGreater(len(set(texts)), 16)

    def test_embeddings(self):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", max_retries=0)
        data = client.embeddings.create(model="bn-demo", input=["one", "two"]).data  # it asks for base64
        self.assertEqual([len(entry.embedding) for entry in data], [256, 256])


@unittest.skipIf(anthropic is None, "no package anthropic here")
class Anthropic(ServerTest):
    options = {"model": "builtin:echo"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{cls.server.port}", api_key="none", max_retries=0)

    def test_messages(self):
        more = {"model": "echo", "messages": MESSAGES, "max_tokens": 16, "extra_body": {"ignore_eos": True, "temperature": 0}}
        whole = self.client.messages.create(**more)
        self.assertTrue(whole.content[0].text.startswith("user: hello"))
        with self.client.messages.stream(**more) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.usage.output_tokens, final.stop_reason), (16, "max_tokens"))
        tools = [{"name": "f", "input_schema": {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]}}]
        asked = {"model": "echo", "messages": MESSAGES, "max_tokens": 400, "tools": tools, "tool_choice": {"type": "tool", "name": "f"}}
        with self.client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.content[0].type, final.content[0].input["x"]), ("tool_use", "tool_use", 1))
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(model="echo", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}], max_tokens=5)

    def test_tools(self):
        tools = [{"name": "f", "description": "Where?", "input_schema": Place.model_json_schema()}]
        asked = {"model": "echo", "max_tokens": 400, "tools": tools, "extra_body": {"seed": 3}}
        forced = {**asked, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        whole = self.client.messages.create(messages=MESSAGES, **forced)
        [call] = whole.content
        self.assertIn(call.input["city"], CITIES)
        with self.client.messages.stream(messages=MESSAGES, **forced) as stream:
            parts = [event for event in stream if event.type == "input_json"]
            self.assertEqual(stream.get_final_message().content[0].input, call.input)
        self.assertEqual(parts[-1].snapshot, call.input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7 degrees"}]}
        again = MESSAGES + [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        more = {"model": "echo", "max_tokens": 4000, "tools": tools, "extra_body": {"temperature": 0}}
        done = self.client.messages.create(messages=again, **more)
        self.assertIn("7 degrees", "".join(block.text for block in done.content if block.type == "text"))
        counted = self.client.messages.count_tokens(model="echo", messages=again, tools=tools)
        self.assertEqual(counted.input_tokens, done.usage.input_tokens + done.usage.cache_read_input_tokens)

    def test_tools_are_run(self):
        asked = []

        @anthropic.beta_tool
        def place(city: Literal["Paris", "Rome"]) -> str:
            """Where is it?"""
            asked.append(city)
            return "there"

        more = {"model": "echo", "messages": MESSAGES, "max_tokens": 400, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        answers = list(self.client.beta.messages.tool_runner(tools=[place], max_iterations=2, extra_body={"seed": 3}, **more))
        self.assertEqual([answer.stop_reason for answer in answers], ["tool_use", "tool_use"])
        self.assertLessEqual(set(asked), set(CITIES))
        self.assertGreaterEqual(len(asked), 1)

    def test_messages_are_parsed(self):
        more = {"model": "echo", "messages": MESSAGES, "max_tokens": 400, "extra_body": {"seed": 3}}
        whole = self.client.messages.parse(output_format=Place, **more)
        self.assertIn(whole.parsed_output.city, CITIES)
        with self.client.messages.stream(output_format=Place, **more) as stream:
            self.assertEqual(stream.get_final_message().parsed_output, whole.parsed_output)
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(output_config={"format": {"type": "xml"}}, **more)


if __name__ == "__main__":
    unittest.main()

"""The packages `openai` and `anthropic` as clients, where they are installed (they are not needed otherwise)."""
import asyncio
import unittest

from support import ServerTest

try:
    import openai
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None

MESSAGES = [{"role": "user", "content": "hello there"}]


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

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="echo", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f f"}}])
        self.assertIn("tools[0].function.name", str(caught.exception))


@unittest.skipIf(openai is None, "no package openai here")
class OpenAiDemo(ServerTest):
    def test_32_streams_at_once_are_as_each_alone(self):
        base_url = f"http://127.0.0.1:{self.server.port}/v1"
        request = {"model": "m", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 1, "extra_body": {"ignore_eos": True}}

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
        data = client.embeddings.create(model="m", input=["one", "two"]).data  # it asks for base64
        self.assertEqual([len(entry.embedding) for entry in data], [256, 256])


@unittest.skipIf(anthropic is None, "no package anthropic here")
class Anthropic(ServerTest):
    options = {"model": "builtin:echo"}

    def test_messages(self):
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.server.port}", api_key="none", max_retries=0)
        more = {"model": "echo", "messages": MESSAGES, "max_tokens": 16, "extra_body": {"ignore_eos": True, "temperature": 0}}
        whole = client.messages.create(**more)
        self.assertTrue(whole.content[0].text.startswith("user: hello"))
        with client.messages.stream(**more) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.usage.output_tokens, final.stop_reason), (16, "max_tokens"))
        tools = [{"name": "f", "input_schema": {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]}}]
        asked = {"model": "echo", "messages": MESSAGES, "max_tokens": 400, "tools": tools, "tool_choice": {"type": "tool", "name": "f"}}
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.content[0].type, final.content[0].input["x"]), ("tool_use", "tool_use", 1))
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(model="echo", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}], max_tokens=5)


if __name__ == "__main__":
    unittest.main()

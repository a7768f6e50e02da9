"""Requests as applications make them, to SmolLM2 Instruct: a chat, a JSON schema, a tool call, a session."""
import json
import unittest

import real
from bn_engine import Engine

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colors"],
    "additionalProperties": False,
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}, "required": ["city"],
              "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}}
WEATHER = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [TOOL], "tool_choice": "required",
           "parallel_tool_calls": False}


def ask(text):
    return [{"role": "user", "content": text}]


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(real.path(SMOLLM2))

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def generate(self, **options):
        return self.engine.generate(**{"temperature": 0, "max_new_tokens": 100, **options})

    def test_chat(self):
        output = self.generate(messages=ask("What is 2+2?"))
        self.assertIn("4", output.text)
        self.assertEqual(output.reason, "stop")

    def test_json_schema(self):
        for seed in range(4):
            output = self.generate(messages=ask("Describe a person as JSON."), json_schema=SCHEMA, temperature=1, seed=seed)
            value = json.loads(output.text)
            self.assertEqual(list(value), ["name", "age", "colors"])
            self.assertIn(value["age"], range(1, 121))
            self.assertLessEqual(set(value["colors"]), {"red", "green", "blue"})

    def test_tool_call(self):
        output = self.generate(chat_json=WEATHER, parse_output=True)
        (call,) = output.tool_calls
        self.assertEqual((call.name, list(json.loads(call.arguments))), ("get_weather", ["city"]))

    def test_session_in_another_engine(self):
        """A conversation continues from its session with the same output."""
        story = real.texts()["prose"][:2000]
        whole = self.generate(prompt=story)
        self.generate(prompt=story[:1500], session="story", max_new_tokens=1)
        saved = self.engine.session_save("story")
        with Engine(self.engine.model) as other:
            other.session_restore("story", saved)
            output = other.generate(story, temperature=0, max_new_tokens=100, session="story")
        self.assertEqual(output.tokens, whole.tokens)
        self.assertGreater(output.cached_tokens, 300)

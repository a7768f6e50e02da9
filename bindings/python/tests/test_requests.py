"""Options of requests: sampling, constraints, tools, adapters, scores, drafts, the hook in logits."""

import json
import math
import pathlib
import tempfile
import unittest
from array import array

from support import LONG, QUESTIONS, ROOT, SAMPLING, SLOW

import bn_engine
from bn_engine import Adapter, Engine, Model, Pixels
from bn_engine._request import joined

STORY = "Once upon a time"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"unit": {"enum": ["C", "F"]}},
                "required": ["unit"],
                "additionalProperties": False,
            },
        },
    }
]
#: The echo model answers with its prompt, which keeps roles unchanged: reasoning, two calls and text.
CALL = '<tool_call>{"name": "get_weather", "arguments": {"unit": "C"}}</tool_call>'
CALLS = {
    "messages": [{"role": "<think>\nhm\n</think>\nBoth", "content": f"{CALL}\n{CALL}\ndone"}],
    "add_generation_prompt": False,
    "tool_format": "hermes",
    "reasoning_format": "think",
}
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["on", "size"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


class Settings:
    """Like a model of pydantic."""

    @classmethod
    def model_json_schema(cls):
        return SCHEMA


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(log_level=bn_engine.LOG_OFF)
        cls.addClassCleanup(cls.engine.close)

    def assert_refused(self, word, **options):
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, word):
            self.engine.generate(STORY, **options)


class Sampling(Demo):
    def test_every_field_reaches_the_library(self):
        plain = self.engine.generate(STORY, **SAMPLING)
        token = plain.tokens[0]
        changes = (
            {"typical_p": 0.3},
            {"top_n_sigma": 0.5},
            {"xtc_probability": 1.0, "xtc_threshold": 0.05},
            {"dry_multiplier": 5.0, "dry_allowed_length": 0, "dry_breakers": []},
            {"mirostat_tau": 0.5, "mirostat_eta": 1.0},
            {"temperature_range": 1.0, "temperature_exponent": 2.0},
            {"logit_bias": {token: -math.inf}},
            {"bad_words": [self.engine.model.detokenize([token]).strip()]},
        )
        for options in changes:
            answer = self.engine.generate(STORY, **{**SAMPLING, "temperature": 1.5, **options})
            self.assertNotEqual(
                answer.tokens, self.engine.generate(STORY, **{**SAMPLING, "temperature": 1.5}).tokens, options
            )
        refused = (
            ("typical_p", 2), ("top_n_sigma", -1), ("xtc_probability", 2), ("xtc_threshold", 2), ("mirostat_tau", -1),
            ("mirostat_eta", 2), ("dry_multiplier", -1), ("dry_base", 0.5), ("temperature_range", -1),
            ("temperature_exponent", -1), ("logprob_tokens", [1]), ("logit_bias", {10**6: 1}),
        )  # fmt: skip
        for name, value in refused:
            self.assert_refused(name, **{name: value})
        self.assert_refused("a sampler is 99", samplers=[99])

    def test_forbidden_words_and_tokens_do_not_come(self):
        first = self.engine.generate(STORY, max_new_tokens=8).tokens
        answer = self.engine.generate(STORY, max_new_tokens=8, logit_bias={first[0]: -math.inf, first[1]: -100.0})
        self.assertFalse({first[0], first[1]} & set(answer.tokens))
        self.assertNotIn("boy", self.engine.generate(STORY, bad_words=["boy"]).text)

    def test_an_output_can_be_made_longer(self):
        self.assertEqual(self.engine.generate("17+25=").generated_tokens, 3)
        self.assertGreaterEqual(self.engine.generate("17+25=", min_new_tokens=10).generated_tokens, 10)

    def test_the_order_of_samplers(self):
        order = [bn_engine.SAMPLER_TEMPERATURE, bn_engine.SAMPLER_TOP_P]
        options = {**SAMPLING, "temperature": 3.0, "top_p": 0.5, "seed": 3}
        hot = self.engine.generate(STORY, samplers=order, **options)
        cold = self.engine.generate(STORY, samplers=order[::-1], **options)
        self.assertNotEqual(hot.tokens, cold.tokens)

    def test_log_probabilities_of_chosen_tokens_and_of_the_chain(self):
        options = {"logprobs": True, "logprob_tokens": [5, 6], "max_new_tokens": 1, "logit_bias": {5: -math.inf}}
        own = self.engine.generate(STORY, **options)
        chain = self.engine.generate(STORY, chain_logprobs=True, **options)
        self.assertEqual(own.logprobs_per_token, 3)
        self.assertEqual([entry.token for entry in own.logprobs[1:]], [5, 6])
        self.assertTrue(math.isfinite(own.logprobs[1].logprob))
        self.assertEqual(chain.logprobs[1].logprob, -math.inf)

    def test_mistakes_in_maps(self):
        for bias in ({"a": 1}, [1], {1: "b"}, {-1: 1}):
            with self.assertRaisesRegex(TypeError, "logit_bias cannot be"):
                self.engine.generate(STORY, logit_bias=bias)


class Pictures(Demo):
    def test_a_model_that_sees_none_refuses_them(self):
        self.assertEqual(self.engine.model.info.sees, 0)
        rows = array("B", [0] * 6)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.png"
            path.write_bytes(b"\x89PNG")
            for picture in (b"\x89PNG", bytearray(b"\x89PNG"), path, str(path), Pixels(2, 1, rows)):
                with self.assertRaisesRegex(bn_engine.UnsupportedError, "sees none"):
                    self.engine.generate(STORY, pictures=[picture])
                with self.assertRaises(bn_engine.UnsupportedError):
                    self.engine.picture_positions(picture)
            with self.assertRaises(FileNotFoundError):
                self.engine.generate(STORY, pictures=[path.with_name("b.png")])
        self.assertEqual(self.engine.generate(STORY, max_new_tokens=2, pictures=[]).generated_tokens, 2)

    def test_mistakes(self):
        self.assert_refused("pictures.1..data is empty", pictures=[b"a", b""])
        self.assert_refused("pictures.0.: 5 bytes for 2 x 1 pixels", pictures=[Pixels(2, 1, bytes(5))])
        self.assert_refused("pictures", pictures=[b"a"] * (bn_engine.MAX_PICTURES + 1))
        for pictures in (b"a", 5, [5], [None], [Pixels(-1, 1, b"abc")]):
            with self.assertRaisesRegex(TypeError, "pictures cannot be"):
                self.engine.generate(STORY, pictures=pictures)


class Constraints(Demo):
    def ask(self, **options):
        return self.engine.generate(STORY, **{"temperature": 1.0, "max_new_tokens": 60, **options})

    def test_each_kind(self):
        for schema in (SCHEMA, json.dumps(SCHEMA), Settings):
            for seed in range(4):
                answer = self.ask(json_schema=schema, seed=seed)
                self.assertEqual(answer.reason, "stop")
                value = json.loads(answer.text)
                self.assertEqual(list(value), ["on", "size"])
                self.assertIn(value["size"], ("small", "large"))
        self.assertTrue(self.ask(json_object=True, max_new_tokens=1).text.startswith("{"))
        self.assertRegex(self.ask(regex="[a-f]{4}|[0-9]{3}").text, "^([a-f]{4}|[0-9]{3})$")
        self.assertRegex(self.ask(lark='start: "<" start ">" | "x"', max_new_tokens=4).text, "^<*x?>*$")
        self.assertRegex(self.ask(gbnf='root ::= [a-c]{2,5} ("!" | "?")').text, "^[a-c]{2,5}[!?]$")
        plain = self.engine.generate("17+25=", json_object=False, regex=None)
        self.assertEqual(plain.text, "42")

    def test_checking_compiles_it_for_requests(self):
        with Engine(self.engine.model) as engine:
            engine.check_constraint(json_schema=SCHEMA)
            engine.generate(STORY, json_schema=Settings)
            stats = engine.stats()
            self.assertEqual((stats.grammars_compiled, stats.grammars_reused), (1, 1))
            compact = {"json_object": True, "json_flags": bn_engine.JSON_COMPACT}
            engine.check_constraint(**compact)
            engine.generate(STORY, max_new_tokens=1, **compact)
            self.assertEqual(engine.stats().grammars_reused, 2)
            with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "constraint"):
                engine.check_constraint(regex="a(")
            with self.assertRaisesRegex(TypeError, "no option"):
                engine.check_constraint(temperature=1)

    def test_mistakes(self):
        self.assert_refused("thing", json_schema={"type": "thing"})
        self.assert_refused("constraint", regex=True)
        for options in ({"json_schema": 5}, {"json_schema": {"x": set()}}, {"regex": "a", "gbnf": "root ::= x"}):
            with self.assertRaisesRegex(TypeError, "cannot be"):
                self.ask(**options)


class Chats(unittest.TestCase):
    def test_answers_are_told_apart_whole_and_in_a_stream(self):
        with Engine("builtin:echo?us_per_token=20") as engine:
            options = {"chat_json": CALLS | {"tools": TOOLS}, "parse_output": True, "max_new_tokens": 0}
            whole = engine.generate(**options)
            self.assertIn("Both: done", whole.text)
            self.assertEqual(whole.tool_calls_total, 2)
            self.assertEqual(
                [(call.name, call.arguments) for call in whole.tool_calls], [("get_weather", '{"unit": "C"}')] * 2
            )
            outputs = list(engine.stream(**options))
            self.assertEqual("".join(output.text for output in outputs), whole.text)
            arguments = ["", ""]
            for part in (part for output in outputs for part in output.tool_calls):
                arguments[part.index] += part.arguments
            self.assertEqual(arguments, ['{"unit": "C"}'] * 2)
            self.assertEqual(engine.stream(**options).result().tool_calls, whole.tool_calls)

    def test_what_is_left_of_a_stream_has_each_call_once(self):
        with Engine("builtin:echo") as engine:
            end = engine.generate(chat_json=CALLS | {"tools": TOOLS}, parse_output=True, max_new_tokens=0)
        first, second = end.tool_calls
        begun, rest = second._replace(arguments='{"unit"'), second._replace(id="", name="", arguments=': "C"}')
        events = [
            end._replace(text="a", reasoning="x", tool_calls=[first, begun]),
            end._replace(text="b", reasoning="y", tool_calls=[rest]),
        ]
        whole = joined(events)
        self.assertEqual((whole.text, whole.reasoning, whole.tool_calls), ("ab", "xy", [first, second]))
        self.assertEqual(joined([events[1], events[1]]).tool_calls, [rest._replace(arguments=': "C"}: "C"}')])

    def test_reasoning(self):
        chat = {**CALLS, "messages": [{"role": "<think>\nhm\n</think>\n\nYes", "content": "a"}]}
        with Engine("builtin:echo?us_per_token=20") as engine:
            for text in (chat, json.dumps(chat)):
                answer = engine.stream(chat_json=text, parse_output=True).result()
                self.assertEqual((answer.reasoning, answer.text), ("hm", "Yes: a\n"))
            self.assertIn("<think>", engine.generate(chat_json=chat).text)

    def test_reasoning_is_bounded(self):
        chat = {
            "messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "<think>\n"}],
            "continue_final_message": True,
            "reasoning_format": "think",
        }
        with Engine("builtin:echo") as engine:
            for most, reasoning in ((5, "user:"), (0, "")):
                answer = engine.generate(
                    chat_json=chat, parse_output=True, ignore_eos=True, max_new_tokens=60, max_reasoning_tokens=most
                )
                self.assertEqual((answer.reasoning, answer.reasoning_tokens), (reasoning, most + len("</think>")))
                self.assertTrue(answer.text)

    def test_a_required_call_comes(self):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "tool_choice": "required"}
        with Engine("builtin:echo") as engine:
            answer = engine.generate(
                chat_json={**chat, "parallel_tool_calls": False}, parse_output=True, temperature=1.0, max_new_tokens=500
            )
            (call,) = answer.tool_calls
            self.assertEqual((call.name, answer.reason), ("get_weather", "stop"))
            self.assertIn(json.loads(call.arguments), [{"unit": "C"}, {"unit": "F"}])

    def test_formatting_without_an_engine(self):
        chat = {"messages": [{"role": "user", "content": "a"}]}
        with Model("builtin:echo") as model:
            for text in (chat, json.dumps(chat)):
                self.assertEqual(model.chat_format(text), "user: a\nassistant: ")
            messages = chat["messages"]
            self.assertEqual(model.chat_tokenize(chat), model.chat_tokenize(messages))

    def test_mistakes(self):
        with Engine("builtin:echo") as engine:
            for chat in ({"messages": [{}]}, '{"messages": [{}]}'):
                with self.assertRaisesRegex(bn_engine.InvalidArgumentError, r"messages\[0\].role"):
                    engine.generate(chat_json=chat)
            with self.assertRaisesRegex(TypeError, "chat_json cannot be"):
                engine.generate(chat_json=[])


class Adapters(unittest.TestCase):
    def setUp(self):
        model = Model(ROOT / "tests/golden/models/llama-llama3", log_level=bn_engine.LOG_OFF)
        self.engine = Engine(model, context_length=128, adapter_bytes=1 << 20)
        self.addCleanup(self.engine.close)

    def ask(self, **options):
        prompt = [3 + i * 7 % 60 for i in range(40)]
        return self.engine.generate(prompt_tokens=prompt, ignore_eos=True, **SAMPLING, **options).tokens

    def test_requests_with_and_without_one(self):
        plain = self.ask()
        with Adapter(self.engine, ROOT / "tests/golden/adapters/llama") as adapter:
            adapted = self.ask(adapter=adapter)
            fingerprint = adapter.fingerprint
            with Adapter(self.engine, ROOT / "tests/golden/adapters/llama") as again:
                self.assertEqual(again.fingerprint, fingerprint)
            self.assertNotEqual(adapted, plain)
            self.assertNotEqual(self.ask(adapter=adapter, adapter_scale=-2.0), adapted)
            self.assertEqual(self.ask(adapter=adapter, adapter_scale=0.0), plain)
        file = Adapter(self.engine, str(ROOT / "tests/golden/adapters/llama.gguf"))
        self.assertEqual(self.ask(adapter=file), adapted)
        self.assertEqual(self.ask(), plain)

    def test_lifetimes(self):
        used = self.engine.stats().memory_used_bytes
        first = Adapter(self.engine, ROOT / "tests/golden/adapters/llama")
        more = self.engine.stats().memory_used_bytes
        self.assertGreater(more, used)
        stream = self.engine.stream(prompt_tokens=[5] * 40, adapter=first, max_new_tokens=4)
        first.close()
        first.close()
        self.assertGreater(len(stream.result().tokens), 0)  # it has kept it
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "not a live"):
            self.ask(adapter=first)
        Adapter(self.engine, ROOT / "tests/golden/adapters/llama")  # dropped at once
        while self.engine.stats().memory_used_bytes >= more:
            pass

    def test_mistakes(self):
        with self.assertRaises(bn_engine.IoError):
            Adapter(self.engine, "/nonexistent")
        with self.assertRaisesRegex(bn_engine.BadModelError, "attn_q"):
            Adapter(self.engine, ROOT / "tests/golden/adapters/qwen3")
        with self.assertRaisesRegex(TypeError, "adapter cannot be"):
            self.ask(adapter=self.engine.model)
        with self.assertRaisesRegex(TypeError, "adapter cannot be"):
            self.ask(adapter="adapters/llama")
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "needs adapter"):
            self.ask(adapter_scale=2.0)


class Scores(Demo):
    def test_the_likely_answer_wins_and_is_greedy(self):
        for entry in QUESTIONS[:4]:
            wrong = str(int(entry["answer"]) + 1)
            right, other, words = self.engine.score(entry["prompt"], [entry["answer"], wrong, "the ball"])
            self.assertTrue(right.greedy and right.logprob > -0.5)
            self.assertFalse(other.greedy)
            self.assertLess(max(other.logprob, words.logprob), right.logprob)
        self.assertEqual(self.engine.score(STORY, []), [])

    def test_the_score_is_what_generating_the_text_says(self):
        answer = self.engine.generate(STORY, logprobs=True, max_new_tokens=8)
        (score,) = self.engine.score(STORY, [answer.text])
        self.assertEqual((score.tokens, score.greedy), (8, True))
        self.assertAlmostEqual(score.logprob, sum(entry.logprob for entry in answer.logprobs), places=4)

    def test_the_first_token_of_all_is_not_counted(self):
        with Engine("builtin:echo") as engine:  # whose tokens are the bytes and an end
            (score,) = engine.score("", ["abc"])
        self.assertEqual(score.tokens, 3)
        self.assertLess(score.logprob, 0)

    def test_further_log_probabilities_change_no_score(self):
        answers = [QUESTIONS[0]["answer"], "the ball"]
        plain = self.engine.score(QUESTIONS[0]["prompt"], answers)
        self.assertEqual(self.engine.score(QUESTIONS[0]["prompt"], answers, logprob_tokens=[5, 6]), plain)

    def test_log_probabilities_of_an_echoed_prompt(self):
        answer = self.engine.generate(STORY, echo_prompt=True, logprobs=True, prompt_logprobs=True, max_new_tokens=1)
        unknown = [math.isnan(entry.logprob) for entry in answer.logprobs]
        self.assertEqual(unknown, [True] + [False] * answer.prompt_tokens)

    def test_mistakes(self):
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "logprobs_from"):
            self.engine.score(STORY, [" there", ""])
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "constraint"):
            self.engine.score(STORY, [" there"], regex="a")
        with Engine(SLOW) as engine, self.assertRaises(bn_engine.TimedOutError):
            engine.score(LONG, [" there"], timeout_ms=1)


class Speculation(unittest.TestCase):
    def test_drafts_change_no_token_and_are_counted(self):
        prompt = "one two three one two three " * 4  # which the answer repeats
        with Engine("builtin:echo", speculation=bn_engine.SPECULATION_LOOKUP, draft_tokens=1) as engine:
            drafted = engine.generate(prompt)
            plain = engine.generate(prompt, speculation=bn_engine.SPECULATION_OFF)
            self.assertEqual(drafted.tokens, plain.tokens)
            self.assertEqual((plain.drafted_tokens, plain.accepted_tokens), (0, 0))
            self.assertGreater(drafted.accepted_tokens, 0)
            stats = engine.stats()
            self.assertEqual(
                (stats.drafted_tokens, stats.accepted_tokens), (drafted.drafted_tokens, drafted.accepted_tokens)
            )
            with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "draft_tokens"):
                engine.generate(prompt, draft_tokens=bn_engine.MAX_DRAFT_TOKENS + 1)

    def test_a_draft_model_changes_no_token(self):
        model = Model(data=(ROOT / "models/bn-demo.gguf").read_bytes())
        with Engine(model, draft_model=model) as engine:
            drafted = engine.generate(STORY, speculation=bn_engine.SPECULATION_DRAFT, **SAMPLING)
            plain = engine.generate(STORY, speculation=bn_engine.SPECULATION_OFF, **SAMPLING)
            self.assertEqual(drafted.tokens, plain.tokens)
            self.assertEqual(drafted.accepted_tokens, drafted.drafted_tokens)  # it drafts for itself
            self.assertEqual(engine.stats().drafting_ns > 0, drafted.accepted_tokens > 0)
        with Engine(model) as engine, self.assertRaisesRegex(bn_engine.InvalidArgumentError, "draft_model"):
            engine.generate(STORY, speculation=bn_engine.SPECULATION_DRAFT)
        with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "vocabulary"):
            Engine(model, draft_model=Model("builtin:echo"))

    def test_a_block_of_the_model_drafts(self):
        model = Model(ROOT / "tests/golden/mtp/qwen35", mtp=True)
        options = {"prompt_tokens": list(range(5, 40)), "max_new_tokens": 30, "ignore_eos": True}
        options["logit_bias"] = {7: 100.0, 9: 100.0}
        with Engine(model) as engine:
            drafted = engine.generate(**options)
            plain = engine.generate(speculation=bn_engine.SPECULATION_OFF, **options)
            self.assertEqual(drafted.tokens, plain.tokens)
            self.assertEqual(plain.drafted_tokens, 0)
        with self.assertRaisesRegex(bn_engine.UnsupportedError, "mtp is set"):
            Model(ROOT / "models/bn-demo.gguf", mtp=True)

    def test_an_engine_keeps_the_bytes_of_its_draft_model(self):
        data = bytearray((ROOT / "models/bn-demo.gguf").read_bytes())
        with Engine(draft_model=Model(data=data)), self.assertRaises(BufferError):
            data.clear()


class Hooks(Demo):
    def test_logits_can_be_changed(self):
        seen = []

        def force(prompt, output, logits):
            seen.append((prompt, output, logits))
            logits[7 + len(output)] = 1e6

        answer = self.engine.generate(STORY, on_logits=force, max_new_tokens=4, ignore_eos=True)
        self.assertEqual(answer.tokens, [7, 8, 9, 10])
        prompt, output, logits = seen[3]  # they are copies, which may be kept
        self.assertEqual(prompt.tolist(), self.engine.model.tokenize(STORY, add_special=True))
        self.assertEqual(output, array("I", [7, 8, 9]))
        self.assertEqual(len(logits), self.engine.model.info.vocab_size)

    def test_each_stream_of_a_batch_has_its_own(self):
        def force(token):
            def change(_prompt, _output, logits):
                logits[token] = 1e6

            return change

        options = {"max_new_tokens": 5, "ignore_eos": True}
        streams = [self.engine.stream(STORY, on_logits=force(token), **options) for token in range(20, 36)]
        self.assertEqual([s.result().tokens for s in streams], [[token] * 5 for token in range(20, 36)])

    def test_what_it_raises_ends_its_request_alone(self):
        def third(_prompt, output, _logits):
            if len(output) == 2:
                raise KeyError("third")

        def grow(_prompt, _output, logits):
            logits.append(0)

        def reenter(*_):
            self.engine.generate("x")

        other = self.engine.stream("17+25=")
        stream = self.engine.stream(STORY, on_logits=third)
        with self.assertRaisesRegex(KeyError, "third"):
            list(stream)
        with self.assertRaisesRegex(ValueError, "on_logits has made"):
            self.engine.generate(STORY, on_logits=grow)
        with self.assertRaises(bn_engine.ReentrantError):
            self.engine.generate(STORY, on_logits=reenter)
        self.assertEqual(other.result().text, "42")

    def test_a_stream_that_is_left_needs_its_hook_no_more(self):
        from bn_engine import _hook

        stream = self.engine.stream(STORY, on_logits=lambda *_: None, max_new_tokens=0, ignore_eos=True)
        next(stream)
        stream.close()
        self.assertEqual(self.engine.generate("17+25=").text, "42")
        with self.assertRaises(bn_engine.InvalidArgumentError):
            self.engine.stream(STORY, on_logits=lambda *_: None, temperature=-1)
        self.assertEqual(_hook._hooks, {})


if __name__ == "__main__":
    unittest.main()

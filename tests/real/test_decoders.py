"""Decoders on real text, against transformers in f32, and against llama.cpp's own distance from it."""
import math
import time
import unittest

import bn_engine
import real
from bn_engine import Engine, Model
from measure import divergence, perplexity

SMOLLM2, GEMMA = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"
#: Options of the model and of the engine; llama.cpp's type of keys and values to compare with; the largest KL divergence as
#: a multiple of llama.cpp's. The first sees all windows, the others the first of each text.
CONFIGURATIONS = {
    "as in the file": ({}, {}, "f16", 1.1),
    "KV int8": ({}, {"kv_type": bn_engine.KV_TYPE_INT8}, "q8_0", 2),
    "KV int4": ({}, {"kv_type": bn_engine.KV_TYPE_INT4}, "q4_0", 1.5),
    "weights int8": ({"weight_type": bn_engine.WEIGHTS_INT8}, {}, "f16", 15),
}
#: |ln(perplexity / exact)| that counts as chance. Above it, the limit is llama.cpp's own value, with the same factor.
CHANCE = 0.005
#: A greedy answer may leave llama.cpp's where the reference has less than this between the best two tokens, in nats.
NEAR_TIE = 0.5


def computed(engine, name, texts):
    """For windows: each token's log probability, and at some positions the best tokens with theirs."""
    golden, own, tops = real.golden(name), [], []
    options = {"task": bn_engine.TASK_SCORE, "logprobs": True, "top_logprobs": golden["top"]}
    streams = [engine.stream(prompt_tokens=window, **options) for windows in texts for window in windows]
    for stream in streams:
        output = stream.result()
        each = output.logprobs_per_token
        rows = [output.logprobs[at : at + each] for at in range(each, len(output.logprobs), each)]
        own += [row[0].logprob for row in rows]
        tops += [[(entry.token, entry.logprob) for entry in row[1:]] for row in rows[golden["stride"] - 1 :: golden["stride"]]]
    return own, tops


def exact(name, most):
    """The same values of the reference, for that many windows of each text."""
    golden, own, tops = real.golden(name), [], []
    for window in [window for windows in golden["windows"].values() for window in windows[:most]]:
        own += real.unpacked(window["own"], "f", golden["window"] - 1)[0]
        rows = zip(*[real.unpacked(window[key], kind, golden["top"]) for key, kind in (("ids", "I"), ("values", "f"))])
        tops += [list(zip(*row)) for row in rows]
    return own, tops


class Decoder:
    name: str

    @classmethod
    def setUpClass(cls):
        cls.golden = real.golden(cls.name)
        cls.model = Model(real.path(cls.name))
        cls.ids = {text: cls.model.tokenize(content) for text, content in real.texts().items()}

    def test_tokens(self):
        for text, content in real.texts().items():
            with self.subTest(text):
                self.assertEqual(real.summed(self.ids[text]), self.golden["texts"][text])
                self.assertEqual(self.model.detokenize(self.ids[text]), content)

    def windows(self, most):
        head, step = self.golden["head"], self.golden["window"] - len(self.golden["head"])
        return [[head + self.ids[text][at * step : (at + 1) * step] for at in range(len(windows[:most]))]
                for text, windows in self.golden["windows"].items()]

    def check(self, configuration, most):
        model_options, engine_options, kv, factor = CONFIGURATIONS[configuration]
        model = Model(real.path(self.name), **model_options) if model_options else self.model
        began = time.monotonic()
        with Engine(model, **engine_options) as engine:
            own, tops = computed(engine, self.name, self.windows(most))
        seconds = time.monotonic() - began
        reference = exact(self.name, most)
        theirs = self.golden["whole" if most is None else "firsts"][kv]
        ours, right = perplexity(own), perplexity(reference[0])
        kl = divergence(reference[1], tops)
        real.TABLE.append((
            self.name, configuration, str(len(own)), f"{ours:.3f}", f"{theirs['perplexity']:.3f}", f"{right:.3f}",
            f"{kl:.4f}", f"{theirs['divergence']:.4f}", f"{seconds:.1f}"))
        self.assertLess(kl, factor * theirs["divergence"])
        bound = max(CHANCE, abs(math.log(theirs["perplexity"] / right))) * factor
        self.assertLess(abs(math.log(ours / right)), bound)

    def test_probabilities(self):
        for i, configuration in enumerate(CONFIGURATIONS):
            with self.subTest(configuration):
                self.check(configuration, 1 if i else None)

    def test_greedy(self):
        with Engine(self.model) as engine:
            streams = [engine.stream(prompt_tokens=answer["prompt"], temperature=0, max_new_tokens=len(answer["tokens"]))
                       for answer in self.golden["greedy"]]
            for answer, stream in zip(self.golden["greedy"], streams):
                tokens = stream.result().tokens
                differs = (i for i, (a, b) in enumerate(zip(tokens, answer["tokens"])) if a != b)
                first = next(differs, None)
                if first is not None:
                    self.assertLess(answer["gaps"][first], NEAR_TIE, (answer["question"], first))

    def test_look_up_changes_nothing(self):
        """A prompt that is mostly repeated: drafts are accepted, and the text is the same."""
        code = real.texts()["code"][:1200]
        prompt = f"{code}\n\n# The same code again:\n\n{code[:200]}"
        with Engine(self.model) as engine:
            plain, drafted = (engine.generate(prompt, temperature=0, max_new_tokens=128, speculation=speculation)
                              for speculation in (bn_engine.SPECULATION_OFF, bn_engine.SPECULATION_LOOKUP))
        self.assertEqual(plain.tokens, drafted.tokens)
        self.assertGreater(drafted.accepted_tokens, 40)


class SmolLM2(Decoder, unittest.TestCase):
    name = SMOLLM2

    def test_chat_template(self):
        for answer in self.golden["greedy"]:
            self.assertEqual(self.model.chat_tokenize([{"role": "user", "content": answer["question"]}]), answer["prompt"])


class Gemma3(Decoder, unittest.TestCase):
    name = GEMMA

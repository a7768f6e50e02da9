"""Encoders: vectors and token ids, against transformers in f32."""
import math
import unittest

import real
from bn_engine import Engine, Model

#: The largest distance from the reference's vector, both of length 1.
LIMIT = 1e-5


class Encoder:
    name: str

    @classmethod
    def setUpClass(cls):
        cls.golden, cls.model = real.golden(cls.name), Model(real.path(cls.name))

    def test_vectors(self):
        with Engine(self.model) as engine:
            ours = [engine.embed(self.golden["prefix"] + sentence) for sentence in self.golden["sentences"]]
        theirs = real.unpacked(self.golden["vectors"], "f", self.model.info.embedding_size)
        distance = max(map(math.dist, ours, theirs))
        real.VECTORS.append((self.name, str(len(ours)), f"{distance:.1e}"))
        self.assertLess(distance, LIMIT)

    def test_tokens(self):
        for text, content in real.texts().items():
            with self.subTest(text):
                self.assertEqual(real.summed(self.model.tokenize(content)), self.golden["texts"][text])


class MiniLM(Encoder, unittest.TestCase):
    name = "all-MiniLM-L6-v2"


class E5(Encoder, unittest.TestCase):
    name = "multilingual-e5-small"


class EmbeddingGemma(Encoder, unittest.TestCase):
    name = "embeddinggemma-300m"

"""Models and engines from threads, without asyncio."""

import asyncio
import json
import logging
import math
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from support import LONG, QUESTIONS, ROOT, SAMPLING, SLOW, STORIES

import bn_engine
from bn_engine import Engine, Model


class Versions(unittest.TestCase):
    def test_the_wheel_has_the_version_of_its_library(self):
        self.assertEqual(bn_engine.__version__, version("bn-engine"))
        parts = bn_engine.VERSION_MAJOR, bn_engine.VERSION_MINOR, bn_engine.VERSION_PATCH
        self.assertEqual(bn_engine.__version__, ".".join(map(str, parts)))


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine()
        cls.addClassCleanup(cls.engine.close)

    def test_golden_answers(self):
        for entry in QUESTIONS[:8]:
            self.assertEqual(self.engine.generate(entry["prompt"]).text, entry["answer"])
        for entry in STORIES[:4]:
            story = self.engine.generate(entry["prompt"], max_new_tokens=len(entry["tokens"]))
            self.assertEqual((story.text, story.tokens), (entry["text"], entry["tokens"]))
            self.assertEqual((story.reason, story.generated_tokens), ("length", len(entry["tokens"])))

    def test_a_stream_has_the_same_text_in_pieces(self):
        whole = self.engine.generate("Once upon a time", max_new_tokens=20)
        outputs = list(self.engine.stream("Once upon a time", max_new_tokens=20))
        self.assertEqual("".join(output.text for output in outputs), whole.text)
        self.assertEqual([token for output in outputs for token in output.tokens], whole.tokens)
        self.assertEqual([output.last for output in outputs], [False] * (len(outputs) - 1) + [True])

    def test_streams_of_threads_are_those_of_their_seeds(self):
        def ask(seed):
            return self.engine.stream("Once upon a time", seed=seed, **SAMPLING).result().text

        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, range(32)))
        self.assertEqual(together, [ask(seed) for seed in range(32)])
        self.assertGreater(len(set(together)), 16)

    def test_one_thread_has_many_streams(self):
        streams = [self.engine.stream(entry["prompt"]) for entry in QUESTIONS[:8]]
        self.assertEqual([s.result().text for s in streams], [entry["answer"] for entry in QUESTIONS[:8]])

    def test_token_ids_log_probabilities_and_stops(self):
        tokens = self.engine.model.tokenize("Once upon a time", add_special=True)
        answer = self.engine.generate(prompt_tokens=tokens, logprobs=True, top_logprobs=2, max_new_tokens=4)
        self.assertEqual(answer.tokens, STORIES[-1]["tokens"][:4])
        self.assertEqual((answer.logprobs_per_token, len(answer.logprobs)), (3, 12))
        own, first, second = answer.logprobs[:3]
        self.assertEqual(own, first)
        self.assertTrue(second.logprob <= first.logprob <= 0)
        stopped = self.engine.generate("Once upon a time", stop_strings=["boy", "kind"])
        self.assertEqual((stopped.text, stopped.reason, stopped.stop_index), (", there was a ", "stop_string", 1))
        stopped = self.engine.generate("Once upon a time", stop_tokens=answer.tokens[1:2])
        self.assertEqual((stopped.reason, stopped.stop_index, len(stopped.tokens)), ("stop", 0, 2))

    def test_an_echoed_prompt_has_entries_for_all_tokens_but_no_log_probabilities_of_its_own(self):
        answer = self.engine.generate("17+25=", echo_prompt=True, logprobs=True)
        self.assertEqual(answer.text, "17+25=42")
        self.assertEqual(len(answer.logprobs), len(answer.tokens))
        unknown = [math.isnan(entry.logprob) for entry in answer.logprobs]
        self.assertEqual(unknown, [True] * answer.prompt_tokens + [False] * answer.generated_tokens)

    def test_a_pause_and_fewer_threads(self):
        with Engine(self.engine.model, threads=2) as engine:
            engine.pause()
            stream = engine.stream("17+25=")
            self.assertEqual(engine.generate("17+25=", timeout_ms=1).reason, "timed_out")
            stats = engine.stats()
            self.assertEqual((stats.engine_paused, stats.queued, stats.steps, stats.threads), (1, 1, 0, 2))
            engine.set_threads(1)
            with self.assertRaisesRegex(bn_engine.Error, "threads = 3"):
                engine.set_threads(3)
            engine.resume()
            self.assertEqual((stream.result().text, engine.stats().threads), ("42", 1))

    def test_statistics(self):
        with Engine(self.engine.model, max_batch_size=7) as engine:
            for entry in QUESTIONS[:3]:
                engine.generate(entry["prompt"])
            stats = engine.stats()
            self.assertEqual((stats.accepted, stats.completed_stop, stats.running, stats.unreleased), (3, 3, 0, 0))
            self.assertEqual(stats.end_to_end.count, 3)
            self.assertEqual(sum(stats.end_to_end.buckets), 3)
            self.assertEqual(len(stats.end_to_end.buckets), bn_engine.LATENCY_BUCKETS)
            self.assertEqual((stats.max_batch_size, stats.batched_requests), (7, stats.steps))
            self.assertEqual(stats.queue_age_ns, [0] * 4)
            self.assertIn("bn_requests_accepted_total 3\n", engine.metrics())
            self.assertIn("batch", engine.report())


class Models(unittest.TestCase):
    def test_text_and_tokens(self):
        with Model() as model:
            self.assertEqual((model.info.architecture, model.info.has_tokenizer), ("bitnet-b1.58", 1))
            tokens = model.tokenize("Grüße 🐍")
            self.assertEqual(model.detokenize(tokens), "Grüße 🐍")
            self.assertEqual(b"".join(map(model.token_bytes, tokens)).strip(), "Grüße 🐍".encode())
            self.assertEqual(model.tokenize(""), [])
            special = model.tokenize("a", add_special=True)
            self.assertEqual(special, [model.info.bos_token, *model.tokenize("a")])

    def test_a_file_its_bytes_and_its_descriptor_are_one_model(self):
        path = ROOT / "models/bn-demo.gguf"
        with path.open("rb") as file:
            sources = Model(path), Model(data=path.read_bytes()), Model(fd=file.fileno())
        for model in sources:
            with Engine(model) as engine:
                model.close()  # the engine keeps what it needs
                del model
                self.assertEqual(engine.generate("17+25=").text, "42")

    def test_progress_is_told_and_may_stop_loading(self):
        told = []
        Model(progress=lambda fraction, what: told.append((fraction, what)))
        self.assertEqual(told[-1][0], 1.0)

        def stop(fraction, what):
            raise KeyError(what)

        with self.assertRaises(KeyError):
            Model(progress=stop)

    def test_messages(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        with Engine("builtin:echo") as engine:
            text = "system: Be brief.\nuser: Hello\nassistant: "
            self.assertEqual(engine.model.chat_format(messages), text)
            unfinished = {"messages": messages, "add_generation_prompt": False}
            self.assertEqual(engine.model.chat_format(unfinished), text[: -len("assistant: ")])
            self.assertEqual(engine.generate(messages=messages).text, text)
            tokens = engine.model.chat_tokenize(messages)
            self.assertEqual(engine.generate(prompt_tokens=tokens).text, text)

    def test_embeddings(self):
        with Engine() as engine:
            vector = engine.embed("Once upon a time")
            self.assertEqual(len(vector), engine.model.info.embedding_size)
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
            raw = engine.embed(
                "Once upon a time", normalization=bn_engine.NORMALIZATION_NONE, pooling=bn_engine.POOLING_LAST
            )
            self.assertNotAlmostEqual(sum(x * x for x in raw), 1, places=5)
            self.assertEqual(memoryview(vector).format, "f")

    def test_reranking(self):
        folder = ROOT / "tests/golden/models/bert-reranker"
        with Engine(folder) as engine:
            self.assertTrue(engine.model.info.scores_pairs)
            for pair in json.loads((folder / "texts.json").read_text())["pairs"]:
                query, document = pair["texts"]
                if query:
                    scores = engine.rerank(query, [document, "", document])
                    self.assertAlmostEqual(scores[0], pair["score"], places=3)
                    self.assertEqual(scores[0], scores[2])
                    self.assertEqual(asyncio.run(engine.arerank(query, [document])), scores[:1])
        with Engine() as engine, self.assertRaises(bn_engine.UnsupportedError):
            engine.rerank("x", ["y"])

    def test_decisions(self):
        story = "Once upon a time there was a small machine."
        questions: list[bn_engine.Question] = [
            {"kind": bn_engine.QUESTION_YES_NO, "text": "Was it small?", "options": [" yes", " no"]},
            {"kind": bn_engine.QUESTION_SCORE, "text": "It counted to", "options": [" 1", " 2", " 3"]},
            {"text": "It met", "options": [" a dog", " a cat"]},
        ]
        with Engine() as engine:
            answers = engine.decide(story, questions)
            self.assertEqual([len(answer.probabilities) for answer in answers], [2, 3, 2])
            for answer in answers:
                total = sum(math.exp(logprob) for logprob in answer.logprobs)
                for share, logprob in zip(answer.probabilities, answer.logprobs):
                    self.assertAlmostEqual(share, math.exp(logprob) / total)
                self.assertEqual(answer.best, answer.probabilities.index(max(answer.probabilities)))
            self.assertEqual(answers[0].value, answers[0].probabilities[0])
            levels = sum(level * share for level, share in enumerate(answers[1].probabilities))
            self.assertAlmostEqual(answers[1].value, levels)
            self.assertEqual(asyncio.run(engine.adecide(story, questions)), answers)
            with self.assertRaisesRegex(bn_engine.InvalidArgumentError, "empty"):
                engine.decide(story, [{"name": "empty"}])
            with self.assertRaises(TypeError):
                engine.decide(story, [{"words": "x"}])  # type: ignore[typeddict-unknown-key]

    def test_the_log_goes_to_logging(self):
        with self.assertLogs("bn_engine", logging.INFO) as logs:
            Engine(log_level=bn_engine.LOG_INFO).close()
        self.assertEqual({record.levelno for record in logs.records}, {logging.INFO})


class Ends(unittest.TestCase):
    def test_a_cancelled_stream_ends_and_others_go_on(self):
        with Engine(SLOW, queue_capacity=2) as engine:
            victim, other = engine.stream(LONG, max_new_tokens=0), engine.stream("other")
            with self.assertRaises(bn_engine.QueueFullError):
                engine.stream("third")
            victim.cancel()
            self.assertEqual(victim.result().reason, "cancelled")
            self.assertEqual(engine.stream("third").result().text, "third")
            self.assertEqual(other.result().text, "other")
            self.assertEqual((engine.stats().completed_cancelled, engine.stats().unreleased), (1, 0))

    def test_a_stream_that_is_left_early_frees_its_place(self):
        with Engine(SLOW, queue_capacity=1) as engine:
            for output in engine.stream("abcdefgh", ignore_eos=True):
                self.assertTrue(output.text)
                break
            del output
            # The engine frees it a step later.
            while engine.stats().unreleased:
                pass
            self.assertEqual(engine.stats().completed_cancelled, 1)
            with engine.stream(LONG) as stream:
                self.assertEqual(stream.info().queue_position, 0)
            self.assertEqual(list(stream), [])
            with self.assertRaises(bn_engine.NotFoundError):
                stream.info()

    def test_close_ends_streams_of_other_threads(self):
        engine = Engine(SLOW)
        ends, waiting = [], threading.Barrier(9)

        def wait():
            stream = engine.stream(LONG)
            waiting.wait()
            try:
                ends.append(stream.result().reason)
            except bn_engine.Error as error:
                ends.append(error.name)

        threads = [threading.Thread(target=wait) for _ in range(8)]
        for thread in threads:
            thread.start()
        waiting.wait()
        engine.close()
        for thread in threads:
            thread.join()
        self.assertLessEqual(set(ends), {"cancelled", "BN_ERR_SHUTDOWN", "BN_ERR_INVALID_ARGUMENT"})
        self.assertEqual(len(ends), 8)

    def test_use_after_close_is_an_error(self):
        model = Model()
        engine = Engine(model)
        stream = engine.stream("17+25=")
        engine.close()
        engine.close()
        for call in (engine.stats, engine.metrics, lambda: engine.generate("x"), lambda: engine.state):
            with self.assertRaises(bn_engine.InvalidArgumentError):
                call()
        with self.assertRaises(bn_engine.Error):
            list(stream)
        model.close()
        with self.assertRaises(bn_engine.InvalidArgumentError):
            model.tokenize("x")

    def test_a_drained_engine_finishes_what_it_has(self):
        with Engine("builtin:echo?us_per_token=100") as engine:
            stream = engine.stream("finish this")
            engine.shutdown()
            with self.assertRaises(bn_engine.ShutdownError):
                engine.generate("too late")
            self.assertEqual(stream.result().text, "finish this")
            while engine.state != bn_engine.STATE_DRAINED:
                pass

    def test_sessions_and_the_prefix_cache(self):
        with Engine("builtin:echo", kv_block_size=16, kv_events_capacity=100) as engine:
            engine.generate("x" * 64, session="talk")
            stored = [event for event in engine.kv_events() if event.kind == bn_engine.KV_EVENT_STORED]
            self.assertEqual(stored[1].parent_hash, stored[0].hash)
            self.assertEqual(engine.kv_events(), [])
            saved = engine.session_save("talk")
            engine.session_free("talk")
            with self.assertRaises(bn_engine.NotFoundError):
                engine.session_free("talk")
            engine.cache_clear()
            self.assertEqual(engine.kv_events()[0].kind, bn_engine.KV_EVENT_CLEARED)
            engine.session_restore("talk", saved)
            self.assertGreaterEqual(engine.generate("x" * 64).cached_tokens, 48)


class Mistakes(unittest.TestCase):
    def assert_raises(self, kind, words, call, *arguments, **options):
        with self.assertRaises(kind) as caught:
            call(*arguments, **options)
        self.assertIn(words, caught.exception.message)
        self.assertEqual(caught.exception.status, getattr(bn_engine, caught.exception.name[3:]))

    def test_models_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_raises(bn_engine.IoError, "nothing.gguf", Model, Path(folder, "nothing.gguf"))
        self.assert_raises(bn_engine.BadModelError, "", Model, data=(ROOT / "models/bn-demo.gguf").read_bytes()[:1000])

    def test_options(self):
        with Engine("builtin:echo") as engine:
            self.assert_raises(bn_engine.InvalidArgumentError, "temperature", engine.generate, "x", temperature=-1)
            self.assert_raises(bn_engine.InvalidArgumentError, "prompt", engine.generate)
            for options in ({"temprature": 1}, {"poll_by_id": True}, {"stop_strings": "abc"}, {"seed": "1"}):
                with self.assertRaises(TypeError):
                    engine.generate("x", **options)
            with self.assertRaisesRegex(TypeError, "cannot be -1"):
                engine.generate("x", priority=-1)
            self.assertEqual(engine.stats().accepted, 0)
            self.assert_raises(bn_engine.WrongModeError, "kv_events_capacity", engine.kv_events)

    def test_a_request_that_times_out_is_an_answer_but_no_embedding(self):
        with Engine(SLOW) as engine:
            self.assertEqual(engine.generate(LONG, timeout_ms=20).reason, "timed_out")
            with self.assertRaises(bn_engine.TimedOutError):
                engine.embed(LONG, timeout_ms=20)

    def test_every_status_has_its_exception(self):
        statuses = {name for name in vars(bn_engine) if name.startswith("ERR_")}
        self.assertEqual({kind.name[3:] for kind in bn_engine.Error.__subclasses__()}, statuses)


if __name__ == "__main__":
    unittest.main()

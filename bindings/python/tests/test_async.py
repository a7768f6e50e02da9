"""Engines in asyncio's loops, and in uvloop's where it is installed."""

import asyncio
import contextlib
import threading
import unittest

from support import LONG, QUESTIONS, SAMPLING, SLOW

import bn_engine
from bn_engine import Engine

try:
    import uvloop
except ImportError:
    uvloop = None


async def released(engine):
    """The engine frees released requests a step later."""
    while engine.stats().unreleased:
        await asyncio.sleep(0.001)


class Loops:
    """Tests for any loop: `run` is asyncio's, or another loop's."""

    def test_golden_answers_at_once(self):
        async def ask(engine):
            return await asyncio.gather(*(engine.agenerate(entry["prompt"]) for entry in QUESTIONS[:32]))

        with Engine() as engine:
            answers = self.run_loop(ask(engine))
        self.assertEqual([answer.text for answer in answers], [entry["answer"] for entry in QUESTIONS[:32]])

    def test_concurrent_streams_are_those_of_their_seeds(self):
        async def ask(engine, seed):
            return [output.text async for output in engine.astream("Once upon a time", seed=seed, **SAMPLING)]

        async def together(engine):
            return await asyncio.gather(*(ask(engine, seed) for seed in range(32)))

        with Engine() as engine:
            pieces = self.run_loop(together(engine))
            alone = [engine.generate("Once upon a time", seed=seed, **SAMPLING).text for seed in range(32)]
        self.assertEqual(["".join(texts) for texts in pieces], alone)
        self.assertGreater(sum(map(len, pieces)), 32)

    def test_a_cancelled_task_cancels_its_request(self):
        async def main(engine):
            async def read():
                async for _ in engine.astream("abcdefgh", ignore_eos=True):
                    begun.set()

            begun = asyncio.Event()
            streaming = asyncio.ensure_future(read())
            waiting = asyncio.ensure_future(engine.agenerate(LONG))
            await begun.wait()
            with self.assertRaises(bn_engine.QueueFullError):
                await engine.agenerate("third")
            for task in (streaming, waiting):
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            await released(engine)
            self.assertEqual(engine.stats().completed_cancelled, 2)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.agenerate(LONG), 0.01)
            await released(engine)
            return await engine.agenerate("the next")

        with Engine(SLOW, queue_capacity=2) as engine:
            self.assertEqual(self.run_loop(main(engine)).text, "the next")
            self.assertEqual(engine.stats().completed_cancelled, 3)

    def test_streams_end_by_cancel_close_and_break(self):
        async def main(engine):
            victim, other = engine.astream(LONG), engine.astream("other")
            victim.cancel()
            self.assertEqual((await victim.result()).reason, "cancelled")
            self.assertEqual((await other.result()).text, "other")
            async with engine.astream(LONG) as stream:
                task = asyncio.ensure_future(stream.result())
                await asyncio.sleep(0)
            with self.assertRaises(RuntimeError):
                await task
            async for _ in engine.astream("abcdefgh", ignore_eos=True):
                break
            await released(engine)

        with Engine(SLOW) as engine:
            self.run_loop(main(engine))
            self.assertEqual(engine.stats().completed_cancelled, 3)

    def test_closing_the_engine_ends_its_streams(self):
        async def main(engine):
            tasks = [asyncio.ensure_future(engine.agenerate(LONG)) for _ in range(8)]
            await asyncio.sleep(0)
            engine.close()
            with self.assertRaises(bn_engine.InvalidArgumentError):
                await engine.agenerate("too late")
            return {answer.reason for answer in await asyncio.gather(*tasks)}

        self.assertEqual(self.run_loop(main(Engine(SLOW))), {"cancelled"})

    def test_failures_and_embeddings(self):
        async def main(engine):
            with self.assertRaises(bn_engine.InvalidArgumentError):
                engine.astream("x", temperature=-1)
            with self.assertRaises(bn_engine.TimedOutError):
                await engine.aembed(LONG, timeout_ms=20)
            self.assertEqual(await engine.aembed("text"), engine.embed("text"))

        with Engine(SLOW) as engine:
            self.run_loop(main(engine))

    def test_a_cancelled_score_leaves_no_request(self):
        async def main(engine):
            task = asyncio.ensure_future(engine.ascore(LONG, ["x", "y"]))
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:  # whose traceback keeps what the call had
                while (stats := engine.stats()).completed_cancelled + stats.completed_length < 2:
                    await asyncio.sleep(0.001)
                return stats.completed_cancelled

        with Engine(SLOW) as engine:
            self.assertEqual(self.run_loop(main(engine)), 2)

    def test_scores_calls_and_hooks(self):
        def force(_prompt, output, logits):
            if len(output) == 2:
                raise KeyError("third")
            logits[7] = 1e6

        chat = {"messages": [{"role": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "content": "x"}]}
        chat |= {"tools": [{"type": "function", "function": {"name": "f"}}], "add_generation_prompt": False}

        async def main(engine, echo):
            right, wrong = await engine.ascore("17+25=", ["42", "43"])
            self.assertTrue(right.greedy and right.logprob > wrong.logprob)
            self.assertEqual([right, wrong], engine.score("17+25=", ["42", "43"]))
            tokens = []
            with self.assertRaisesRegex(KeyError, "third"):
                async for output in engine.astream("17+25=", on_logits=force):
                    tokens += output.tokens
            self.assertLessEqual(set(tokens), {7})
            (call,) = (await echo.astream(chat_json=chat, parse_output=True, max_new_tokens=0).result()).tool_calls
            self.assertEqual((call.name, call.arguments), ("f", '{"a": 1}'))

        with Engine(log_level=bn_engine.LOG_OFF) as engine, Engine("builtin:echo?us_per_token=20") as echo:
            self.run_loop(main(engine, echo))

    def test_loops_of_two_threads_share_an_engine(self):
        async def ask(engine):
            return await asyncio.gather(*(engine.agenerate(str(i)) for i in range(200)))

        def run():
            answers.append([answer.text for answer in self.run_loop(ask(engine))])

        answers = []
        with Engine("builtin:echo") as engine:
            for _ in range(2):  # loops come and go
                threads = [threading.Thread(target=run) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        self.assertEqual(answers, [[str(i) for i in range(200)]] * 4)

    def test_another_thread_may_close_the_engine(self):
        async def main(engine):
            stream = engine.astream(LONG)
            closing = threading.Thread(target=engine.close)
            closing.start()
            reason = (await stream.result()).reason
            closing.join()
            return reason

        self.assertEqual(self.run_loop(main(Engine(SLOW))), "cancelled")

    def test_a_loop_that_stopped_takes_no_other_ones_events(self):
        async def abandon(engine, kept):
            kept.append(engine.astream("abandoned"))

        kept = []
        with Engine("builtin:echo") as engine:
            with contextlib.suppress(asyncio.CancelledError):
                self.run_loop(abandon(engine, kept))
            self.assertEqual(self.run_loop(engine.agenerate("next")).text, "next")


class Asyncio(Loops, unittest.TestCase):
    def run_loop(self, coroutine):
        return asyncio.run(coroutine)


@unittest.skipIf(uvloop is None, "uvloop is not installed")
class Uvloop(Loops, unittest.TestCase):
    def run_loop(self, coroutine):
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()


if __name__ == "__main__":
    unittest.main()

"""Engines and processes: exit, fork, signals, pickle; and the programs of the README."""

import os
import pickle
import re
import unittest

from support import LONG, PACKAGE, SLOW, python

import bn_engine
from bn_engine import Engine, Model

STREAMS = f"""
    import asyncio, threading
    from bn_engine import Engine
    engine = Engine({SLOW!r}, log_level=4)
    def wait():
        for output in engine.stream({LONG!r}): pass
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads: thread.start()
    loop = asyncio.new_event_loop()
    async def begin():
        return engine.astream({LONG!r})
    stream = loop.run_until_complete(begin())
    while engine.stats().accepted < 5: pass
"""


class Processes(unittest.TestCase):
    def test_exit_with_streams_under_way(self):
        hook = "    hooked = engine.stream('abcd', on_logits=lambda *_: None, ignore_eos=True); next(hooked)"
        for end in ("", hook, "    engine.close()", "    del engine", "    raise SystemExit(0)"):
            status, _, errors = python(STREAMS + end)
            self.assertEqual(status, 0, errors)
            self.assertNotIn("Fatal", errors)

    def test_a_callback_may_close_an_engine(self):
        status, output, errors = python(f"""
            from bn_engine import Engine, Model
            engine = Engine({SLOW!r})
            stream = engine.stream({LONG!r})
            Model("builtin:echo?load_ms=100", progress=lambda *_: engine.close())
            print("loaded")
            """)
        self.assertEqual((status, output), (0, "loaded\n"), errors)

    def test_ctrl_c_ends_a_wait(self):
        status, output, errors = python(f"""
            import os, signal, threading
            from bn_engine import Engine
            engine = Engine({SLOW!r})
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
            def interrupt():
                while not engine.stats().running: pass
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt).start()
            try:
                engine.generate({LONG!r})
            except KeyboardInterrupt:
                print("interrupted")
            while engine.stats().unreleased: pass
            print(engine.stats().completed_cancelled)
            """)
        self.assertEqual((status, output), (0, "interrupted\n1\n"), errors)

    def test_a_signal_handler_may_close_the_engine(self):
        for wait in ("list(engine.stream(prompt))", "asyncio.run(engine.agenerate(prompt))"):
            status, output, errors = python(f"""
                import asyncio, os, signal, threading, bn_engine
                engine, prompt = bn_engine.Engine({SLOW!r}), {LONG!r}
                signal.signal(signal.SIGTERM, lambda *_: engine.close())
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
                try:
                    {wait}
                except bn_engine.Error:
                    pass
                try:
                    engine.stats()
                except bn_engine.InvalidArgumentError:
                    print("closed")
                """)
            self.assertEqual((status, output), (0, "closed\n"), errors)

    def test_a_forked_child_may_use_models_but_no_engines_of_its_parent(self):
        model = Model()
        with Engine(model) as engine:
            stream = engine.stream("17+25=")
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for call in (engine.stats, lambda: engine.generate("x"), lambda: next(stream)):
                        with self.assertRaises(bn_engine.ForkedError):
                            call()
                    engine.close()
                    with Engine(model) as own:
                        status = 0 if own.generate("17+25=").text == "42" else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(stream.result().text, "42")

    def test_a_forked_child_exits_as_usual(self):
        status, output, errors = python("""
            import os
            from bn_engine import Engine
            engine = Engine()
            child = os.fork()
            if child:
                print(os.waitpid(child, 0)[1], engine.generate("17+25=").text)
            """)
        self.assertEqual((status, output), (0, "0 42\n"), errors)

    def test_handles_cannot_be_pickled_but_errors_and_answers_can(self):
        with Engine() as engine:
            for handle in (engine, engine.model, engine.stream("x")):
                with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                    pickle.dumps(handle)
            answer = engine.generate("17+25=")
            self.assertEqual(pickle.loads(pickle.dumps(answer)), answer)
        error = pickle.loads(pickle.dumps(bn_engine.QueueFullError("full")))
        self.assertEqual((type(error), error.message, error.status), (bn_engine.QueueFullError, "full", -5))

    def test_engines_that_are_dropped_are_freed(self):
        status, output, errors = python("""
            import gc, os, bn_engine
            def threads():
                return len(os.listdir("/proc/self/task"))
            before = threads()
            engine = bn_engine.Engine()
            engine.cycle = engine
            stream = engine.stream("x")
            del engine
            gc.collect()
            print(threads() > before)
            stream.result()
            del stream
            gc.collect()
            while threads() > before: pass  # one that has ended may be listed for a moment
            """)
        self.assertEqual((status, output), (0, "True\n"), errors)


class Readme(unittest.TestCase):
    def test_its_programs_run(self):
        programs = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)
        self.assertGreaterEqual(len(programs), 2)
        for program in programs:
            status, output, errors = python(program)
            self.assertEqual(status, 0, errors)
            self.assertIn("there was a kind boy", output)


if __name__ == "__main__":
    unittest.main()

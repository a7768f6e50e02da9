"""Images for a model that sees: the same in each API's form, in their places, counted, and read."""
import base64
import os
import tempfile
import unittest

import seeing
from support import ROOT, Server

PICTURE = seeing.png(21, 30)
DATA = base64.b64encode(PICTURE).decode()
URL = "data:image/png;base64," + DATA
SURE = {"temperature": 0, "ignore_eos": True}


def text(words):
    return {"type": "text", "text": words}


def image(data=DATA):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def image_url(url=URL):
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def user(*parts):
    return {"role": "user", "content": list(parts)}


class Seeing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = seeing.make(os.path.join(cls.folder.name, "see"))
        cls.server = Server(model=cls.model, model_name="see", kv_type="f32", context=2048, fetch_images="localhost,127.0.0.1")
        cls.addClassCleanup(cls.server.stop)

    def chat(self, *messages):
        """The text of an answer, and the number of the prompt's tokens."""
        data = self.server.ok("/v1/chat/completions", {"messages": list(messages), "max_tokens": 12, **SURE})
        return data["choices"][0]["message"]["content"], data["usage"]["prompt_tokens"]

    def messages(self, *messages):
        data = self.server.ok("/v1/messages", {"model": "see", "messages": list(messages), "max_tokens": 12, **SURE})
        usage = data["usage"]
        return data["content"][0]["text"], usage["input_tokens"] + usage["cache_read_input_tokens"]

    def refused(self, path, body, words):
        status, data = self.server.post(path, body)
        self.assertEqual(status, 400, data)
        self.assertIn(words, data["error"]["message"])

    def test_all_apis_see_the_same(self):
        wanted = self.chat(user(text("one"), image_url(), text("two")))
        self.assertEqual(self.messages(user(text("one"), image(), text("two"))), wanted)
        self.assertEqual(self.messages(user(text("one"), {"type": "image", "source": {"type": "url", "url": URL}}, text("two"))), wanted)
        parts = [{"type": "input_text", "text": "one"}, {"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "two"}]
        data = self.server.ok("/v1/responses", {"input": [user(*parts)], "max_output_tokens": 12, **SURE})
        self.assertEqual((data["output"][0]["content"][0]["text"], data["usage"]["input_tokens"]), wanted)
        self.assertNotEqual(self.chat(user(text("one"), image_url(), text("two")), {"role": "assistant", "content": "a"}, user(text("b"))), wanted)
        first = self.chat(user(image_url(), image_url(), text("see")))
        chat = [{"role": "user", "content": "see", "images": [DATA, DATA]}]
        options = {"temperature": 0, "num_predict": 12, "ignore_eos": True}
        data = self.server.ok("/api/chat", {"model": "see", "messages": chat, "stream": False, "options": options, "ignore_eos": True})
        self.assertEqual((data["message"]["content"], data["prompt_eval_count"]), first)
        data = self.server.ok("/api/generate", {"model": "see", "prompt": "see", "images": [DATA, DATA], "stream": False, "options": options, "ignore_eos": True})
        self.assertEqual((data["response"], data["prompt_eval_count"]), first)

    def test_another_picture_gives_another_answer(self):
        other = "data:image/png;base64," + base64.b64encode(seeing.png(21, 30, seed=3)).decode()
        asked = [self.server.ok("/v1/chat/completions", {"messages": [user(image_url(url))], "max_tokens": 4, "logprobs": True, **SURE}) for url in (URL, other, URL)]
        logprobs = [[entry["logprob"] for entry in data["choices"][0]["logprobs"]["content"]] for data in asked]
        self.assertEqual(logprobs[0], logprobs[2])
        self.assertNotEqual(logprobs[0], logprobs[1])

    def test_they_are_counted(self):
        plain = self.chat(user(text("one")))[1]
        _, tokens = self.chat(user(text("one"), image_url()))
        self.assertGreater(tokens, plain + 3)
        data = self.server.ok("/v1/messages/count_tokens", {"model": "see", "messages": [user(text("one"), image())]})
        self.assertEqual(data["input_tokens"], tokens)
        data = self.server.ok("/tokenize", {"messages": [user(text("one"), image_url())]})
        self.assertEqual((data["count"], data["tokens"].count(60)), (tokens, 1))

    def test_what_was_shown_before_stays(self):
        said = {"role": "assistant", "content": "a"}
        _, without = self.chat(user(text("one")), said, user(text("b")))
        _, tokens = self.chat(user(text("one"), image_url()), said, user(text("b")))
        self.assertEqual(tokens - without, self.chat(user(text("one"), image_url()))[1] - self.chat(user(text("one")))[1])
        gone = image_url("https://a.example/x.png")
        self.assertGreater(self.chat(user(text("one"), gone), said, user(text("b")))[1], without)

    def test_results_of_tools_have_images(self):
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
        def result(*parts):
            return user({"type": "tool_result", "tool_use_id": "t", "content": list(parts)})
        _, without = self.messages(user(text("go")), call, result(text("shot")))
        _, tokens = self.messages(user(text("go")), call, result(text("shot"), image()))
        self.assertGreater(tokens, without + 3)
        items = [user({"type": "input_text", "text": "go"}), {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
                 {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": URL}}]
        data = self.server.ok("/v1/responses", {"input": items, "max_output_tokens": 4, **SURE})
        self.assertGreater(data["usage"]["input_tokens"], without)

    def test_what_cannot_be_read_is_told(self):
        damaged = bytearray(PICTURE)
        damaged[len(damaged) // 2] ^= 255  # which only the decoder finds
        said = {"role": "assistant", "content": "a"}
        for data in ("iVBORw0KGgo=", base64.b64encode(damaged).decode()):
            url = "data:image/png;base64," + data
            asked = [user(image_url(), text("a"), image_url(url)), said, user(image_url(), text("b"))]
            for stream in (False, True):
                body = {"messages": asked, "stream": stream}
                self.refused("/v1/chat/completions", body, "'messages[0].content[2]': the picture is damaged")
            asked = [user(text("a"), image(data)), said, user(text("b"))]
            body = {"model": "see", "max_tokens": 4, "messages": asked}
            self.refused("/v1/messages", body, "'messages[0].content[1]': the picture is damaged")
        self.refused("/tokenize", {"messages": [user(image_url("data:;base64,iVBORw0KGgo="))]}, "'messages[0].content[0]': the picture")
        for url, words in [("data:image/png;base64,?", "'messages[0].content[1]' is not base64"), ("x", "must be a data URL"),
                           ("https://a.example/x", "cannot be fetched: its host is not one of"), ("http://localhost:1/x", "its port is neither 80 nor 443"),
                           ("http://127.0.0.1/x", "its address is not public"), ("http://localhost/x", "its address is not public")]:
            self.refused("/v1/chat/completions", {"messages": [user(text("a"), image_url(url))]}, words)
        self.refused("/v1/chat/completions", {"messages": [user(*[image_url()] * 1025)]}, "1024")

    def test_too_many_are_too_long(self):
        many = user(*[image_url()] * 200)
        self.refused("/v1/chat/completions", {"messages": [many]}, "maximum context length is 2048 tokens")
        self.refused("/v1/messages", {"model": "see", "max_tokens": 4, "messages": [user(*[image()] * 200)]}, "prompt is too long: ")

    def test_a_part_of_a_model_that_sees_is_told(self):
        self.assertIs(self.server.get("/v1/models")[1]["data"][0]["sees"], True)
        self.assertIs(self.server.get("/props")[1]["modalities"]["vision"], True)
        self.assertIn("vision", self.server.ok("/api/show", {"model": "see"})["capabilities"])
        for path in ("/api/tags", "/api/ps"):
            self.assertIn("vision", self.server.get(path)[1]["models"][0]["capabilities"])

    def test_a_model_that_is_not_loaded_tells_what_its_files_have(self):
        for more, sees in [({}, True), ({"pictures": "none"}, False)]:
            server = Server(models=self.folder.name, **more)
            self.addCleanup(server.stop)
            [entry] = server.get("/v1/models")[1]["data"]
            self.assertEqual((entry["id"], entry["loaded"], entry["sees"]), ("see", False, sees))
            self.assertIs(server.get("/props?model=see")[1]["modalities"]["vision"], sees)
            self.assertEqual("vision" in server.ok("/api/show", {"model": "see"})["capabilities"], sees)

    def test_a_folder_may_be_made_blind(self):
        server = Server(model=self.model, context=512, pictures="none")
        self.addCleanup(server.stop)
        self.assertIs(server.get("/v1/models")[1]["data"][0]["sees"], False)
        status, data = server.post("/v1/chat/completions", {"messages": [user(image_url())]})
        self.assertEqual(status, 400)
        self.assertIn("this model takes only text, no images", data["error"]["message"])

    def test_a_part_that_is_none_is_refused_by_the_options_name(self):
        demo = os.path.join(ROOT, "models", "bn-demo.gguf")
        part = os.path.join(seeing.TOWER, "..", "qwen35-f32.gguf")
        for options, words in [({"model": demo, "pictures": "/nowhere"}, "cannot open '/nowhere'"),
                               ({"model": demo, "pictures": demo}, "is no vision tower"),
                               ({"model": demo, "pictures": os.path.dirname(demo)}, "is a folder without a tower"),
                               ({"model": demo, "pictures": part}, "makes vectors of 40, where the model has a hidden size of 256"),
                               ({"pictures": part}, "the model inside the library sees nothing")]:
            server = Server(wait=False, **options)
            _, log = server.process.communicate(timeout=60)
            self.assertEqual(server.process.returncode, 3)
            self.assertIn("--pictures", log)
            self.assertIn(words, log)

    def test_sessions_with_images_outlive_the_server(self):
        asked = {"session": "shown", "messages": [user(text("one"), image_url())], "max_tokens": 8, **SURE}
        with tempfile.TemporaryDirectory() as folder:
            first = Server(model=self.model, context=512, session_path=folder)
            self.addCleanup(first.stop)
            wanted = first.ok("/v1/chat/completions", asked)["choices"]
            self.assertEqual(first.post("/v1/sessions/shown/save", {})[0], 200)
            second = Server(model=self.model, context=512, session_path=folder)
            self.addCleanup(second.stop)
            self.assertEqual(second.post("/v1/sessions/shown/restore", {})[0], 200)
            self.assertEqual(second.ok("/v1/chat/completions", asked)["choices"], wanted)
            other = Server(model=self.model, context=512, session_path=folder, picture_tokens=16)
            self.addCleanup(other.stop)
            status, data = other.post("/v1/sessions/shown/restore", {})
            self.assertEqual(status, 400)
            self.assertIn("the session has pictures that another tower has seen", data["error"]["message"])

    def test_bodies_are_bounded(self):
        server = Server(model=self.model, context=512, max_body=4096)
        self.addCleanup(server.stop)
        status, data = server.post("/v1/chat/completions", {"messages": [user(image_url(URL + "A" * 4096))]})
        self.assertEqual((status, data["error"]["type"]), (413, data["error"]["type"]))

"""Images for a model that sees none, in the forms of all APIs; where files that see are looked for."""
import base64
import os
import shutil
import tempfile
import unittest

from support import ROOT, Server

DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
URL = "data:image/png;base64," + DATA
TEXT = {"type": "text", "text": "see"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
WORDS = "[image: not shown, as this model reads text only]"


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


#: A path, and a body with an image in the last turn.
ASKED = [
    ("/v1/chat/completions", {"messages": user(TEXT, {"type": "image_url", "image_url": {"url": URL, "detail": "low"}})}),
    ("/v1/responses", {"input": user({"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": URL})}),
    ("/v1/messages", {"messages": user(TEXT, BLOCK)}),
    ("/v1/messages", {"messages": user(TEXT, {"type": "image", "source": {"type": "url", "url": "https://a.example/x"}})}),
    ("/v1/messages/count_tokens", {"messages": user(TEXT, BLOCK)}),
    ("/tokenize", {"messages": user(TEXT, {"type": "image_url", "image_url": {"url": URL}})}),
    ("/api/chat", {"messages": [{"role": "user", "content": "see", "images": [DATA]}]}),
    ("/api/generate", {"prompt": "see", "images": [DATA]}),
    ("/api/generate", {"prompt": "see", "raw": True, "images": [DATA]}),
]


def answer(data):
    """The text of any API's answer."""
    if "choices" in data:
        return data["choices"][0]["message"]["content"]
    if "output" in data:
        return data["output"][0]["content"][0]["text"]
    if "content" in data:
        return data["content"][0]["text"]
    return data["message"]["content"] if "message" in data else data["response"]


class Images(unittest.TestCase):
    def full(self, body):
        return {"model": "echo", "max_tokens": 200, "stream": False, "temperature": 0, "options": {"num_predict": 200, "temperature": 0}, **body}

    def test_they_are_refused_in_the_last_turn(self):
        server = Server(model="builtin:echo")
        self.addCleanup(server.stop)
        for path, body in ASKED:
            status, data = server.post(path, self.full(body))
            error = data["error"] if path.startswith("/api") else data["error"]["message"]
            self.assertEqual(status, 400, path)
            self.assertIn("this model takes only text, no images", error)

    def test_words_stand_for_those_of_earlier_turns_and_of_results(self):
        server = Server(model="builtin:echo")
        self.addCleanup(server.stop)
        earlier = [*user(TEXT, BLOCK), {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
        self.assertIn("user: see\n" + WORDS, answer(server.ok("/v1/messages", self.full({"messages": earlier}))))
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, BLOCK]}
        text = answer(server.ok("/v1/messages", self.full({"messages": [*user(TEXT), call, *user(result)]})))
        self.assertIn("see\n" + WORDS, text)
        items = [{"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
                 {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": URL}}]
        text = answer(server.ok("/v1/responses", {"model": "echo", "temperature": 0, "max_output_tokens": 200, "input": items}))
        self.assertIn(WORDS, text)
        self.assertNotIn(DATA, text)

    def test_they_may_be_left_out(self):
        server = Server(model="builtin:echo", unseen_images="leave-out")
        self.addCleanup(server.stop)
        for path, body in ASKED:
            data = server.ok(path, self.full(body))
            if path not in ("/tokenize", "/v1/messages/count_tokens"):
                text = answer(data)
                self.assertIn("see", text)
                self.assertEqual(WORDS in text, "raw" not in body, path)

    def test_other_media_are_refused(self):
        server = Server(model="builtin:echo", unseen_images="leave-out")
        self.addCleanup(server.stop)
        status, data = server.post("/v1/chat/completions", {"messages": user({"type": "input_audio", "input_audio": {}})})
        self.assertEqual(status, 400)
        self.assertIn("'messages[0].content[0]' is of the type audio", data["error"]["message"])

    def test_what_a_model_sees_is_told(self):
        server = Server(model="builtin:echo")
        self.addCleanup(server.stop)
        self.assertIs(server.get("/v1/models")[1]["data"][0]["sees"], False)
        self.assertIs(server.get("/props")[1]["modalities"]["vision"], False)
        self.assertNotIn("vision", server.ok("/api/show", {"model": "echo"})["capabilities"])

    def test_files_that_may_see_are_named(self):
        demo = os.path.join(ROOT, "models", "bn-demo.gguf")
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m-Q8_0.gguf")
            shutil.copy(demo, model)
            for name in ("mmproj-F16.gguf", "mmproj-F32.gguf"):
                with open(os.path.join(folder, name), "wb"):
                    pass
            def log(**more):
                server = Server(model=model, **more)
                self.assertIn("42", server.ok("/v1/completions", {"prompt": "17+25=", "max_tokens": 3, "temperature": 0})["choices"][0]["text"])
                server.process.terminate()
                return server.process.communicate(timeout=60)[1]

            for more, said in [({}, True), ({"pictures": "none"}, False)]:
                self.assertEqual("--pictures names one of these vision parts: mmproj-F16.gguf, mmproj-F32.gguf" in log(**more), said)
            os.remove(os.path.join(folder, "mmproj-F32.gguf"))
            self.assertIn("images are not seen: --pictures: ", log())  # it is empty

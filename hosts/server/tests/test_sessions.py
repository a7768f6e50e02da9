"""Sessions that are saved and restored: over a restart, by llama.cpp's routes, within limits, and what is refused."""
import os
import stat
import tempfile
import threading
import unittest

from support import Server, ServerTest

STORY = "Once upon a time there was a little dog. " * 3
ASKED = {"prompt": STORY, "max_tokens": 8, "temperature": 0, "session": "story"}


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class Saved(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            self.assertEqual(server.stop(), 0)
        self.folder.cleanup()

    def server(self, **options):
        server = Server(session_path=self.folder.name, **options)
        self.servers.append(server)
        return server

    def test_a_session_outlives_its_server(self):
        first = self.server()
        begun = first.ok("/v1/completions", ASKED)
        saved = first.ok("/v1/sessions/story/save", {})
        self.assertEqual((saved["id"], saved["session"], saved["model"]), ("story", "story", "bn-demo"))
        self.assertGreaterEqual(saved["tokens"], begun["usage"]["prompt_tokens"])
        self.assertEqual(first.stop(), 0)
        path = os.path.join(self.folder.name, "story.session")
        self.assertEqual(os.listdir(self.folder.name), ["story.session"])
        self.assertEqual((os.path.getsize(path), stat.S_IMODE(os.stat(path).st_mode)), (saved["bytes"], 0o600))
        second = self.server()
        longer = {"prompt": STORY + begun["choices"][0]["text"] + " The dog", "max_tokens": 8, "temperature": 0}
        plain = second.ok("/v1/completions", {**longer, "no_cache": True})
        restored = second.ok("/v1/sessions/story/restore", {"session": "again"})
        self.assertEqual([restored[name] for name in ["tokens", "bytes", "session"]], [saved["tokens"], saved["bytes"], "again"])
        answer = second.ok("/v1/completions", {**longer, "session": "again"})
        self.assertEqual(answer["choices"], plain["choices"])
        self.assertEqual(cached(plain), 0)
        self.assertGreaterEqual(cached(answer), begun["usage"]["prompt_tokens"])

    def test_chats_join_a_session(self):
        server = self.server()
        chat = {"messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 4, "session": "chat"}
        server.ok("/v1/chat/completions", chat)
        saved = server.ok("/v1/sessions/chat/save", {"session": ""})
        server.ok("/v1/messages", {**chat, "session": "message"})
        self.assertEqual(server.ok("/v1/sessions/copy/save", {"session": "message"})["tokens"], saved["tokens"])
        self.assertEqual(server.stats()["sessions"], 2)
        erased = server.ok("/v1/sessions/chat/erase", b"")
        self.assertEqual((erased["erased"], server.stats()["sessions"]), (True, 1))
        self.assertEqual(server.post("/v1/sessions/chat/erase", {})[0], 404)

    def test_the_list(self):
        server = self.server(max_sessions=3, session_bytes="1G")
        self.assertEqual(server.get("/v1/sessions"), (200, {"object": "list", "data": [], "bytes": 0, "max_bytes": 1 << 30, "max_sessions": 3}))
        server.ok("/v1/completions", ASKED)
        sizes = {name: server.ok(f"/v1/sessions/{name}/save", {"session": "story"})["bytes"] for name in ["b", "a.bin"]}
        listed = server.get("/v1/sessions")[1]
        self.assertEqual([(entry["id"], entry["bytes"], entry["object"]) for entry in listed["data"]],
                         [("a.bin", sizes["a.bin"], "session"), ("b", sizes["b"], "session")])
        self.assertEqual(listed["bytes"], sum(sizes.values()))
        self.assertEqual(server.get("/v1/sessions/b")[1], listed["data"][1])
        self.assertGreater(listed["data"][0]["created"], 1500000000)
        self.assertEqual(server.request("DELETE", "/v1/sessions/b")[2], {"id": "b", "object": "session", "deleted": True})
        for method in ["GET", "DELETE"]:
            status, _, data = server.request(method, "/v1/sessions/b")
            self.assertEqual((status, data["error"]["message"]), (404, "no session 'b' is saved"))
        self.assertEqual(server.stats()["sessions"], 1)  # that of the model stays

    def test_slots(self):
        server = self.server()
        asked = {"prompt": STORY, "max_tokens": 4, "temperature": 0, "id_slot": 3}
        server.ok("/v1/completions", asked)
        saved = server.ok("/slots/3?action=save", {"filename": "story.bin"})
        self.assertEqual((saved["id_slot"], saved["filename"], set(saved["timings"])), (3, "story.bin", {"save_ms"}))
        self.assertGreater(min(saved["n_saved"], saved["n_written"]), 0)
        self.assertEqual(server.ok("/slots/3?action=erase", b""), {"id_slot": 3})
        self.assertEqual(server.stats()["sessions"], 0)
        restored = server.ok("/slots/0?action=restore", {"filename": "story.bin"})
        self.assertEqual((restored["id_slot"], restored["n_restored"], restored["n_read"], set(restored["timings"])),
                         (0, saved["n_saved"], saved["n_written"], {"restore_ms"}))
        self.assertEqual(server.ok("/v1/sessions/copy/save", {"session": "slot-0"})["tokens"], saved["n_saved"])
        server.ok("/v1/completions", {**asked, "id_slot": -1})  # any
        self.assertEqual(server.stats()["sessions"], 1)
        for path, body, status, words in [
                ("/slots/3?action=save", {"filename": "a"}, 404, "slot-3"), ("/slots/0?action=save", {}, 400, "'filename' is missing"),
                ("/slots/0?action=load", {}, 400, "save, restore or erase"), ("/slots/0", {"filename": "a"}, 400, "save, restore or erase"),
                ("/slots/x?action=save", {"filename": "a"}, 400, "the slot must be a whole number"),
                ("/slots/0?action=save", {"filename": "../a"}, 400, "a saved session's name"), ("/slots/0?action=save", {"filename": 1}, 400, "'filename' must be a text"),
                ("/slots/0?action=restore", {"filename": "none"}, 404, "no session 'none' is saved")]:
            got, data = server.post(path, body)
            self.assertEqual((got, words in data["error"]["message"]), (status, True), data)

    def test_what_is_refused(self):
        server = self.server()
        server.ok("/v1/completions", ASKED)
        server.ok("/v1/sessions/story/save", {})
        for name in ["..%2Fstory", ".story", "a%2Fb", "a b".replace(" ", "%20"), "x" * 129, "a%5Cb", "%C3%A9"]:
            for method, path in [("GET", f"/v1/sessions/{name}"), ("DELETE", f"/v1/sessions/{name}"),
                                 ("POST", f"/v1/sessions/{name}/save"), ("POST", f"/v1/sessions/{name}/restore")]:
                status, _, data = server.request(method, path, {"session": "story"} if method == "POST" else None)
                self.assertEqual((status, "a saved session's name" in data["error"]["message"]), (400, True), path)
        for path, body, status, words in [
                ("/v1/sessions/story", {}, 400, "save, restore or erase"), ("/v1/sessions/story/load", {}, 400, "save, restore or erase"),
                ("/v1/sessions/none/save", {}, 404, "none"), ("/v1/sessions/none/restore", {}, 404, "no session 'none' is saved"),
                ("/v1/sessions/story/save", {"session": 1}, 400, "'session' must be a text"), ("/v1/sessions/story/save", {"model": "x"}, 404, "model 'x' not found")]:
            got, data = server.post(path, body)
            self.assertEqual((got, words in data["error"]["message"]), (status, True), data)
        self.assertEqual(os.listdir(self.folder.name), ["story.session"])

    def test_damaged_and_foreign_files(self):
        server = self.server()
        server.ok("/v1/completions", ASKED)
        server.ok("/v1/sessions/story/save", {})
        path = os.path.join(self.folder.name, "story.session")
        with open(path, "rb") as file:
            data = file.read()
        for wrong in [data[:-1], b"", b"x" * len(data), data[:100] + bytes([data[100] ^ 1]) + data[101:]]:
            with open(path, "wb") as file:
                file.write(wrong)
            status, answer = server.post("/v1/sessions/story/restore", {"session": "new"})
            self.assertEqual((status, "no session that can be restored" in answer["error"]["message"]), (400, True), answer)
        with open(path, "wb") as file:
            file.write(data)
        other = self.server(kv_type="f32")
        status, answer = other.post("/v1/sessions/story/restore", {})
        self.assertEqual((status, "no session that can be restored" in answer["error"]["message"]), (400, True), answer)
        server.ok("/v1/sessions/story/restore", {"session": "new"})

    def test_limits(self):
        server = self.server(max_sessions=2)
        server.ok("/v1/completions", ASKED)
        size = server.ok("/v1/sessions/a/save", {"session": "story"})["bytes"]
        server.ok("/v1/sessions/b/save", {"session": "story"})
        server.ok("/v1/sessions/b/save", {"session": "story"})  # in its own place
        status, data = server.post("/v1/sessions/c/save", {"session": "story"})
        self.assertEqual((status, data["error"]["code"]), (507, "sessions_full"))
        self.assertIn("--max-sessions = 2", data["error"]["message"])
        server.request("DELETE", "/v1/sessions/b")
        server.ok("/v1/sessions/c/save", {"session": "story"})
        small = self.server(session_bytes=2 * size - 1)
        small.ok("/v1/completions", ASKED)
        small.request("DELETE", "/v1/sessions/c")
        status, data = small.post("/v1/sessions/c/save", {"session": "story"})
        self.assertEqual((status, "--session-bytes" in data["error"]["message"]), (507, True), data)
        tiny = self.server(session_bytes=size - 1)
        tiny.ok("/v1/completions", ASKED)
        for action in ["save", "restore"]:
            self.assertEqual(tiny.post(f"/v1/sessions/a/{action}", {"session": "story"})[0], 413, action)

    def test_many_at_a_time(self):
        server = self.server()
        server.ok("/v1/completions", ASKED)
        size = server.ok("/v1/sessions/one/save", {"session": "story"})["bytes"]
        wrong = []

        def work(number):
            for turn in range(4):
                name = "one" if turn % 2 else f"own-{number}"
                for action in ["save", "restore"]:
                    status, data = server.post(f"/v1/sessions/{name}/{action}", {"session": "story"})
                    if status != 200 or data["bytes"] != size:
                        wrong.append((status, data))

        threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(len(server.get("/v1/sessions")[1]["data"]), 7)

    def test_a_key_is_needed(self):
        server = self.server(api_key="secret")
        for method, path in [("GET", "/v1/sessions"), ("DELETE", "/v1/sessions/a"), ("POST", "/v1/sessions/a/save"), ("POST", "/slots/0?action=save")]:
            self.assertEqual(server.request(method, path, headers={"Authorization": "none"})[0], 401, path)
        self.assertEqual(server.get("/v1/sessions")[0], 200)


class Unsaved(ServerTest):
    def test_nothing_is_saved_without_a_folder(self):
        self.server.ok("/v1/completions", ASKED)
        for method, path in [("GET", "/v1/sessions"), ("GET", "/v1/sessions/story"), ("DELETE", "/v1/sessions/story"), ("POST", "/v1/sessions/story/save"),
                             ("POST", "/v1/sessions/story/restore"), ("POST", "/slots/0?action=save")]:
            status, _, data = self.server.request(method, path, {"filename": "a"} if path.startswith("/slots") else None)
            self.assertEqual((status, "it needs --session-path" in data["error"]["message"]), (501, True), path)
        self.assertTrue(self.server.ok("/v1/sessions/story/erase", {})["erased"])


if __name__ == "__main__":
    unittest.main()

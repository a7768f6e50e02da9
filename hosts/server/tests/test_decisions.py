"""/v1/systemone, with the model inside the library."""
import json
import math
import unittest

from support import Server, ServerTest, wait_until

STATE = "I was charged twice for my order last week and nobody has replied."
QUESTIONS = {
    "route": {"type": "choice", "instructions": "Which team should handle this?", "criteria": {"billing": "payments and refunds", "shipping": None, "bill": None}},
    "urgency": {"type": "score", "instructions": "How urgent is this?", "criteria": ["can wait", "this week", "today"]},
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
}
ROUTE = "Which team should handle this?\n\n- billing: payments and refunds\n- shipping\n- bill\nAnswer with the name of one option and nothing else."


class Decisions(ServerTest):
    def ask(self, server=None, **more):
        return (server or self.server).ok("/v1/systemone", {"state": STATE, "questions": QUESTIONS, **more})

    def likelihood(self, messages, option):
        """The log probability of an option as the answer, by plain scoring."""
        tokens = lambda body: self.server.ok("/tokenize", body)["tokens"]
        before = tokens({"messages": messages, "add_generation_prompt": True})
        prompt = before + tokens({"text": option})[len(tokens({"text": ""})):]
        body = {"prompt": prompt, "prompt_logprobs": 0, "max_tokens": 1}
        known = self.server.ok("/v1/completions", body)["choices"][0]["prompt_logprobs"][len(before):]
        return sum(entry["logprob"] for entries in known for entry in entries.values())

    def test_answers_have_the_format_and_its_sums(self):
        data = self.ask()
        self.assertEqual((data["model"], list(data)), ("bn-demo", ["model", "answers", "usage"]))
        self.assertEqual((data["usage"]["output_tokens"], data["usage"]["input_tokens"] > 0), (0, True))
        route, urgency, angry = data["answers"].values()
        self.assertEqual(list(data["answers"]), list(QUESTIONS))
        self.assertEqual(list(route), ["type", "choice", "probabilities", "confidence"])
        self.assertEqual((route["type"], list(route["probabilities"])), ("choice", ["billing", "shipping", "bill"]))
        shares = route["probabilities"]
        self.assertAlmostEqual(sum(shares.values()), 1)
        self.assertEqual(route["choice"], max(shares, key=shares.get))
        self.assertAlmostEqual(route["confidence"], (3 * max(shares.values()) - 1) / 2)
        self.assertEqual(list(urgency), ["type", "score", "legend", "probabilities", "confidence"])
        self.assertEqual(urgency["legend"], {"0": "can wait", "1": "this week", "2": "today"})
        levels = list(urgency["probabilities"].values())
        self.assertAlmostEqual(urgency["score"], sum(level * share for level, share in enumerate(levels)))
        best = levels.index(max(levels))
        spread = sum(share * abs(level - best) for level, share in enumerate(levels))
        self.assertAlmostEqual(urgency["confidence"], max(0, 1 - spread / (2 / 3)))
        self.assertEqual(list(angry), ["type", "noul"])
        self.assertTrue(0 < angry["noul"] < 1)

    def test_probabilities_are_those_of_plain_scoring(self):
        shares = self.ask()["answers"]["route"]["probabilities"]
        messages = [{"role": "user", "content": f"{STATE}\n\n{ROUTE}"}]
        sums = {option: math.exp(self.likelihood(messages, option)) for option in shares}
        for option, share in shares.items():
            self.assertAlmostEqual(share, sums[option] / sum(sums.values()), delta=1e-6)
        # A conversation is asked in its last message, whatever form it has.
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": STATE}]
        other = self.ask(state=turns)["answers"]
        self.assertEqual(self.ask(state={"messages": turns})["answers"], other)
        asked = turns[:2] + [{"role": "user", "content": f"{STATE}\n\n{ROUTE}"}]
        sums = {option: math.exp(self.likelihood(asked, option)) for option in shares}
        self.assertAlmostEqual(other["route"]["probabilities"]["bill"], sums["bill"] / sum(sums.values()), delta=1e-6)

    def test_many_questions_compute_the_state_once(self):
        state = STATE * 5
        questions = {f"q{i}": {"type": "noul", "instructions": f"Is it about {i}?"} for i in range(64)}
        before = self.server.stats()
        data = self.ask(state=state, questions=questions)
        after = self.server.stats()
        self.assertEqual(len(data["answers"]), 64)
        computed = after["prompt_tokens"] - before["prompt_tokens"]
        self.assertLess(computed, data["usage"]["input_tokens"] + 3 * 64)
        alone = self.ask(state=state, questions={"q9": questions["q9"]}, no_cache=True)["answers"]
        self.assertEqual(alone["q9"], data["answers"]["q9"])

    def test_states_may_be_json_and_options_are_described(self):
        state = {"ticket": STATE, "plan": "pro"}
        yes = {"refund": {"type": "noul", "instructions": ["Is a refund asked for?"], "criteria": {"true": "yes, it is"}}}
        self.assertEqual(self.ask(state=state, questions=yes)["answers"], self.ask(state=json.dumps(state, separators=(",", ":")), questions=yes)["answers"])
        plain = {"refund": {**yes["refund"], "criteria": None}}
        self.assertNotEqual(self.ask(state=state, questions=yes)["answers"], self.ask(state=state, questions=plain)["answers"])
        one = self.ask(questions={"q": {"type": "choice", "instructions": "?", "criteria": {"only": None}}})["answers"]["q"]
        self.assertEqual((one["choice"], one["probabilities"], one["confidence"]), ("only", {"only": 1.0}, 1.0))
        self.assertEqual(self.ask(images=[], model="bn-demo", priority=200)["answers"], self.ask()["answers"])

    def test_what_is_refused(self):
        question = lambda **fields: {"questions": {"q": {"type": "choice", "instructions": "a", "criteria": {"x": None}, **fields}}}
        for more, words in [
            ({"state": None}, "'state' is missing"),
            ({"questions": None}, "'questions' is missing"),
            ({"questions": {}}, "'questions' must have 1 to 4096"),
            ({"questions": []}, "'questions' must be an object"),
            ({"questions": {"q": "a"}}, "'questions.q' must be an object"),
            (question(type="unknown"), "'questions.q.type' must be"),
            (question(instructions=""), "'questions.q.instructions'"),
            (question(instructions=5), "'questions.q.instructions'"),
            (question(criteria=None), "'questions.q.criteria' must be an object of 1 to 255"),
            (question(criteria={}), "'questions.q.criteria' must be an object of 1 to 255"),
            (question(criteria={str(i): None for i in range(256)}), "1 to 255"),
            (question(criteria={"": None}), "'questions.q.criteria' has an option without a name"),
            (question(type="score", criteria=["a"] * 11), "a list of 1 to 10 levels"),
            (question(type="noul", criteria=["a"]), "'questions.q.criteria' must be an object"),
            ({"images": ["data:image/png;base64,"]}, "'images': this server takes text only"),
            ({"state": "x" * (6 << 20)}, "a 'state' of"),
        ]:
            with self.subTest(words):
                status, data = self.server.post("/v1/systemone", {"state": STATE, "questions": QUESTIONS, **more})
                self.assertEqual(status, 422, data)
                self.assertIn(words, data["error"]["message"])
        self.refused("/v1/systemone", {"state": "x " * 4000, "questions": QUESTIONS}, "question 0 (\"route\"): This model's maximum")

    def test_a_client_that_hangs_up_cancels_all_of_it(self):
        server = Server(max_batch=1, model="builtin:echo?us_per_token=2000")
        try:
            questions = {f"q{i}": {"type": "noul", "instructions": f"Is it {i}?"} for i in range(500)}
            connection = server.connect()
            connection.request("POST", "/v1/systemone", json.dumps({"state": STATE, "questions": questions}), {})
            wait_until(lambda: server.stats()["prompt_tokens"] > 0, "it begins")
            self.assertEqual(server.stats()["running"], 1)
            connection.sock.close()
            connection.close()
            wait_until(lambda: server.stats()["running"] == 0, "it ends")
            self.assertLess(server.stats()["prompt_tokens"], 500 * 10)
        finally:
            server.stop()

    def test_it_is_one_request_of_the_queue(self):
        server = Server(queue=1)
        try:
            self.assertEqual(self.ask(server)["answers"], self.ask()["answers"])
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main()

"""/v1/rerank and /v1/score, with the model inside the library."""
import json
import math
import os
import subprocess
import unittest

from support import PROGRAM, ROOT, Server, ServerTest

SUMS = {"query": "42", "documents": ["1+1", "17+25", {"text": "9+9"}, "100+1"], "template": "{document}={query}"}
USUAL = "Document:\n{document}\n\nQuery:\n{query}"


class Rerank(ServerTest):
    options = {"queue": 16}

    def scores(self, body, path="/v1/rerank"):
        results = self.server.ok(path, body)["results"]
        return [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]

    def tokens(self, text):
        return self.server.ok("/tokenize", {"text": text})["tokens"]

    def likelihood(self, parts, query):
        """The mean probability of the query's tokens after the parts, which are tokenized one by one."""
        begin = self.tokens("")
        before = sum((self.tokens(part)[len(begin):] for part in parts), begin)
        prompt = before + self.tokens(query)[len(begin):]
        body = {"prompt": prompt, "prompt_logprobs": 0, "max_tokens": 1}
        known = self.server.ok("/v1/completions", body)["choices"][0]["prompt_logprobs"][len(before):]
        return math.exp(sum(entry["logprob"] for entries in known for entry in entries.values()) / len(known))

    def test_the_document_that_makes_the_query_likely_is_first(self):
        data = self.server.ok("/v1/rerank", SUMS)
        results = data["results"]
        self.assertEqual((results[0]["index"], set(results[0])), (1, {"index", "relevance_score"}))
        scores = [result["relevance_score"] for result in results]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertGreater(scores[0], 0.9)
        self.assertLess(scores[1], 0.1)
        self.assertEqual(sorted(result["index"] for result in results), [0, 1, 2, 3])
        self.assertEqual((data["usage"]["prompt_tokens"], data["model"]), (data["usage"]["total_tokens"], "bn-demo"))
        for path in ["/rerank", "/v2/rerank"]:
            self.assertEqual(self.server.ok(path, SUMS)["results"], results)

    def test_a_score_is_the_mean_probability_of_the_querys_tokens(self):
        documents = ["The cat sat.", "Once upon a time", ""]
        for score, document in zip(self.scores({"query": "the cat", "documents": documents}), documents):
            self.assertAlmostEqual(score, self.likelihood(["Document:\n", document, "\n\nQuery:\n"], "the cat"), delta=1e-5 * score)
        # A space before a placeholder belongs to its value.
        body = {"query": "cat", "documents": ["the"], "template": "Of {document} : {query}"}
        self.assertAlmostEqual(self.scores(body)[0], self.likelihood(["Of", " the", " :"], " cat"), delta=1e-9)

    def test_a_verdict_of_two_words(self):
        body = {"query": "17+", "documents": ["25", "81"], "template": "{query}{document}={4|9}"}
        yes, no = self.scores(body)
        self.assertGreater(yes, 0.99)
        self.assertLess(no, 0.01)
        other = self.scores({**body, "template": "{query}{document}={9|4}"})
        for a, b in zip(other, (yes, no)):
            self.assertAlmostEqual(a, 1 - b, places=6)
        self.refused("/v1/rerank", {**body, "template": "{query}{document}={4|xyzzy}"}, "'xyzzy', which is not one token")
        # A space before the words belongs to them; here they are not tokens with it.
        self.refused("/v1/rerank", {**body, "template": "{query}{document}= {4|9}"}, "' 4', which is not one token")

    def test_documents_share_what_stands_before_them(self):
        body = {"query": "Once upon a time there was a cat that sat on a mat" * 3, "documents": ["a", "b", "c", "d"], "template": "{query} {document}={4|9}"}
        before = self.server.stats()["cached_tokens"]
        shared = self.scores(body)
        self.assertGreaterEqual(self.server.stats()["cached_tokens"] - before, 3 * len(self.tokens(body["query"])) - 16)
        alone = [self.scores({**body, "documents": [document], "no_cache": True})[0] for document in body["documents"]]
        self.assertEqual(shared, alone)

    def test_what_can_be_asked_for(self):
        results = self.server.ok("/v1/rerank", {**SUMS, "top_n": 2, "return_documents": True})["results"]
        self.assertEqual([result["document"] for result in results][0], {"text": "17+25"})
        self.assertEqual(len(results), 2)
        self.assertEqual(len(self.server.ok("/v1/rerank", {**SUMS, "top_n": 9})["results"]), 4)
        self.assertEqual(len(self.server.ok("/v1/rerank", {**SUMS, "top_n": 0, "model": "bn-demo", "priority": 200})["results"]), 4)
        whole, cut = self.scores({**SUMS, "documents": ["17+25"]}), self.scores({**SUMS, "documents": ["17+25 and more"], "max_tokens_per_doc": len(self.tokens("17+25")) - len(self.tokens(""))})
        self.assertEqual(whole, cut)
        cut = self.server.ok("/v1/rerank", {"query": "q", "documents": ["x " * 4000], "max_tokens_per_doc": 20})["usage"]
        self.assertLess(cut["prompt_tokens"], 60)

    def test_control_tokens_come_from_the_template_alone(self):
        def count(template, document="d"):
            body = {"query": "q", "documents": [document], "template": template}
            return self.server.ok("/v1/rerank", body)["usage"]["prompt_tokens"]

        plain = count("{document}{query}")
        self.assertEqual(count("<|eos|>{document}{query}"), plain + 1)
        self.assertGreater(count("{document}{query}", "<|eos|>d"), plain + 1)

    def test_pairs(self):
        pairs = {"text_1": ["42", "2"], "text_2": ["17+25", "1+1"], "template": SUMS["template"]}
        data = self.server.ok("/v1/score", pairs)
        self.assertEqual([(entry["index"], entry["object"]) for entry in data["data"]], [(0, "score"), (1, "score")])
        self.assertTrue(all(entry["score"] > 0.9 for entry in data["data"]))
        one = self.server.ok("/score", {**pairs, "text_1": "42"})["data"]
        self.assertEqual(one[0], data["data"][0])
        self.assertLess(one[1]["score"], 0.1)
        other = {"queries": pairs["text_1"], "documents": pairs["text_2"], "template": SUMS["template"]}
        for both in [other, {**other, **pairs, "queries": ["x", "y"]}]:  # of two names, vLLM's first counts
            self.assertEqual(self.server.ok("/v1/score", both)["data"], data["data"])
        self.assertEqual(len(self.server.ok("/v1/score", {"text_1": "42", "text_2": "17+25"})["data"]), 1)
        for more, words in [({"text_1": ["a", "b", "c"]}, "as many as 'text_2'"), ({"text_1": None}, "'text_1' is missing"),
                            ({"text_2": None}, "'text_2' is missing"), ({"text_1": ["a", ""]}, "'text_1' must not be empty")]:
            self.refused("/v1/score", {**pairs, **more}, words)

    def test_what_is_refused(self):
        for more, words in [
            ({"query": None}, "'query' is missing"),
            ({"query": ""}, "'query' must not be empty"),
            ({"query": ["a"]}, "'query' must be a text"),
            ({"documents": None}, "'documents' is missing"),
            ({"documents": []}, "'documents' must not be empty"),
            ({"documents": ["a", 5]}, "'documents' must have texts"),
            ({"documents": [{"image": "a"}]}, "'documents' must have texts"),
            ({"documents": ["a"] * 17}, "'documents' has more than the 16 texts"),
            ({"documents": ["a", "x " * 4000]}, "request 1: This model's maximum"),
            ({"query": "x " * 4000}, "request 0: This model's maximum"),
            ({"documents": ["a"] * 16, "query": "x" * (1 << 20)}, "bytes of query and template for each of 16 texts"),
            ({"top_n": -1}, "'top_n'"),
            ({"return_documents": 1}, "'return_documents' must be true or false"),
            ({"max_tokens_per_doc": 0}, "'max_tokens_per_doc'"),
            ({"template": 5}, "'template' must be a text"),
            ({"template": "{query}"}, "'template' must have {document} and {query}, each once"),
            ({"template": "{query}{document}{query}"}, "each once"),
            ({"template": "{query}{document}"}, "'template' must end with {query}, or"),
            ({"template": "{document}{query}?"}, "'template' must end"),
            ({"template": "{document}{query}{yes|}"}, "'template' must end"),
            ({"template": "{document}{query}{yes|no} "}, "'template' must end"),
        ]:
            with self.subTest(more):
                self.refused("/v1/rerank", {**SUMS, **more}, words)

    def test_a_template_for_all_requests(self):
        server = Server(environment={"BN_RERANK_TEMPLATE": SUMS["template"]})
        try:
            asked = {name: SUMS[name] for name in ("query", "documents")}
            self.assertEqual(server.ok("/v1/rerank", asked)["results"], self.server.ok("/v1/rerank", SUMS)["results"])
            self.assertEqual(server.ok("/v1/rerank", {**asked, "template": USUAL})["results"], self.server.ok("/v1/rerank", asked)["results"])
        finally:
            server.stop()
        failed = subprocess.run([PROGRAM, "--port", "0", "--rerank-template", "{query}"], capture_output=True, text=True, timeout=60)
        self.assertEqual(failed.returncode, 2)
        self.assertIn("--rerank-template must have {document} and {query}", failed.stderr)
        failed = subprocess.run([PROGRAM, "--port", "0", "--rerank-template", "{query}{document}={4|xyzzy}"], capture_output=True, text=True, timeout=60)
        self.assertEqual(failed.returncode, 2)
        self.assertIn("--rerank-template: 'template' ends with 'xyzzy', which is not one token", failed.stderr)

    def test_a_model_with_a_head_scores_the_texts_itself(self):
        folder = os.path.join(ROOT, "tests", "golden", "models", "xlm-roberta-reranker")
        with open(os.path.join(folder, "texts.json"), encoding="utf-8") as f:
            pairs = json.load(f)["pairs"]
        query = pairs[0]["texts"][0]
        want = {pair["texts"][1]: pair["score"] for pair in pairs if pair["texts"][0] == query}
        server = Server(model=folder)
        try:
            results = server.ok("/v1/rerank", {"query": query, "documents": list(want), "return_documents": True})["results"]
            self.assertEqual(len(results), 2)
            for result in results:
                self.assertAlmostEqual(result["relevance_score"], want[result["document"]["text"]], places=4)
            self.assertGreaterEqual(results[0]["relevance_score"], results[1]["relevance_score"])
            counts = [server.ok("/v1/rerank", {"query": query, "documents": list(want), **more})["usage"]["prompt_tokens"] for more in ({}, {"max_tokens_per_doc": 1000}, {"max_tokens_per_doc": 1})]
            self.assertEqual(counts[0], counts[1])
            self.assertLess(counts[2], counts[0])
            scored = server.ok("/v1/score", {"text_1": query, "text_2": list(want)})["data"]
            for document, result in zip(want, scored):
                self.assertAlmostEqual(result["score"], want[document], places=4)
            status, data = server.post("/v1/completions", {"prompt": "a"})
            self.assertEqual(status // 100, 4)
            self.assertIn("encoder", data["error"]["message"])
        finally:
            server.stop()

    def test_a_decoder_that_judges_needs_no_template(self):
        folder = os.path.join(ROOT, "tests", "golden", "models", "qwen3-reranker")
        with open(os.path.join(folder, "texts.json"), encoding="utf-8") as f:
            pairs = json.load(f)["pairs"]
        server = Server(model=folder + ".gguf")
        try:
            for pair in pairs:
                if pair["texts"][0] == "":
                    continue
                body = {"query": pair["texts"][0], "documents": [pair["texts"][1]]}
                if pair["instruction"] is not None:
                    body["instruction"] = pair["instruction"]
                [result] = server.ok("/v1/rerank", body)["results"]
                # Keys and values are stored in F16.
                self.assertAlmostEqual(result["relevance_score"], pair["score"], delta=0.02 * pair["score"])
            self.assertEqual(len(server.ok("/v1/completions", {"prompt": "a", "max_tokens": 2})["choices"]), 1)
            body = {"query": "who", "documents": ["a dog"], "template": "{query} {document}{yes|no}"}
            self.assertNotEqual(self.first(server, body), self.first(server, {**body, "template": None}))
            status, data = server.post("/v1/rerank", {**body, "instruction": "Judge"})
            self.assertEqual((status, "'instruction' is for models" in data["error"]["message"]), (400, True))
        finally:
            server.stop()

    def first(self, server, body):
        return server.ok("/v1/rerank", body)["results"][0]["relevance_score"]


if __name__ == "__main__":
    unittest.main()

"""Makes tests/golden/demo_prompts.json: the shipped model's answers, for tests under load.

Sums and recalls are held-out ones that the model gets right greedily, every token of the answer
and the end clearly ahead of the second choice and no activation on a rounding edge, so that an
engine's own order of float sums cannot turn them. Stories are greedy continuations of 40 tokens.
"""

import json
import os

import torch

import make_golden as mg
import corpus  # found through make_golden's path
import tok

EACH = 60
STORY_TOKENS = 40
OPENINGS = ["Once upon a time", "One day, Mia", "There was once a brave", "It was a cold winter", "Long ago, by the sea",
            "One sunny morning, Tom", "In a small village, there lived", "This is the story of Ada", "Snow fell all night long.",
            "One day, Ben went fishing", "Once upon a time, there was a little girl named Zoe", "Early one morning, Leo",
            "Everybody knew Clara", "One cloudy day, Sam", "Last summer, Ruby", "One morning, Nina", "It was a windy afternoon."]


def main():
    torch.set_num_threads(1)
    c, run = mg.demo_runner(os.path.join(mg.ROOT, "models", "bn-demo.gguf"))
    t = tok.load(os.path.join(mg.ROOT, "tools", "train_demo", "tokenizer.json"))
    bos, eos = t.token_to_id(tok.BOS), t.token_to_id(tok.EOS)

    def gap(row):
        top = row.topk(2).values
        return float(top[0] - top[1]) / float(row.abs().max())

    def right(prompt, answer):
        p, a = [bos] + t.encode(prompt).ids, t.encode(answer).ids + [eos]
        logits, _ = run(p + a[:-1])
        rows = logits[len(p) - 1:]
        return rows.argmax(-1).tolist() == a and min(gap(r) for r in rows) > 0.1

    out = []
    sums = [(f"{a}+{b}=", str(a + b)) for a, b in corpus.all_sums()[1]]
    recalls = corpus.recall_test(400, seed=7)
    for kind, cases in (("sum", sums), ("recall", recalls)):
        good = []
        for prompt, answer in cases:
            if len(good) < EACH and right(prompt, answer):
                good.append({"kind": kind, "prompt": prompt, "answer": answer})
        assert len(good) >= 40, (kind, len(good))
        out += good

    stories = []
    for text in OPENINGS:
        ids, gaps = [bos] + t.encode(text).ids, []
        for _ in range(STORY_TOKENS):
            logits, _ = run(ids)
            gaps.append(gap(logits[-1]))
            ids.append(int(logits[-1].argmax()))
            if ids[-1] == eos:
                break
        tokens = ids[len(t.encode(text).ids) + 1:]
        if eos not in tokens:  # the smallest margin tells how safe the continuation is
            stories.append((min(gaps), {"kind": "story", "prompt": text, "tokens": tokens, "text": t.decode(tokens),
                                        "narrowest_gap": round(min(gaps), 5)}))
    stories.sort(key=lambda x: -x[0])
    assert len(stories) >= 8
    out += [s for _, s in stories[:8]]
    with open(os.path.join(mg.OUT, "demo_prompts.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in out) + "\n]\n")
    print(len(out), "prompts; stories' narrowest gaps", [round(g, 4) for g, _ in stories[:8]])


if __name__ == "__main__":
    main()

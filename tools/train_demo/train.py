"""Trains the demo model on a CPU: float first, then with ternary weights and int8 activations.

Every schedule is a function of the share of the time budget that has passed, so the run ends when
it should, however busy the machine is. Two processes with a thread each average their gradients
(gloo); a checkpoint is written at every evaluation and taken up again by --resume.

  python train.py --out run --seconds 5400 [--init old/ckpt.pt] [--resume]
"""

import argparse
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import corpus
import model
import tok

HERE = os.path.dirname(os.path.abspath(__file__))


# ---------------------------------------------------------------- batches


class Batches:
    """Documents of one kind and about one length together, so that each begins at position 0."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.t = tok.load(os.path.join(HERE, "tokenizer.json"))
        self.bos, self.eos = self.t.token_to_id(tok.BOS), self.t.token_to_id(tok.EOS)
        ids = lambda s: self.t.encode(s).ids
        self.train_sums, self.test_sums = corpus.all_sums()
        self.digit = [ids(str(d))[0] for d in range(10)]
        self.plus, self.equals, self.space = ids("+")[0], ids("=")[0], ids(" ")[0]
        self.comma, self.dot, self.ask = ids(",")[0], ids(".")[0], ids("?")[0]
        self.ages = ids("Ages:")
        self.name = {n: ids(" " + n)[0] for n in corpus.NAMES}
        self.pool = []
        self.sum_rows = [self.sum_ids(a, b) for a, b in self.train_sums]

    def number(self, n):
        return [self.digit[int(d)] for d in str(n)]

    def sum_ids(self, a, b):
        """(ids, index of the first answer digit)"""
        head = [self.bos] + self.number(a) + [self.plus] + self.number(b) + [self.equals]
        return head + self.number(a + b) + [self.eos], len(head)

    def stories(self, n):
        """(ids [n, T], targets [n, T] with -1 where no loss is due)"""
        if len(self.pool) < n:
            docs = [[self.bos] + self.t.encode(corpus.story(self.rng)).ids + [self.eos] for _ in range(n * 12)]
            docs.sort(key=len)
            groups = [docs[i:i + n] for i in range(0, len(docs), n)]
            self.rng.shuffle(groups)
            self.pool = [d for g in groups for d in g]
        docs, self.pool = self.pool[-n:], self.pool[:-n]
        T = max(map(len, docs)) - 1
        ids, out = torch.full((n, T), self.eos), torch.full((n, T), -1)
        for i, d in enumerate(docs):
            ids[i, :len(d) - 1] = torch.tensor(d[:-1])
            out[i, :len(d) - 1] = torch.tensor(d[1:])
        return ids, out

    def sums(self, n=0, pairs=None):
        rows = [self.sum_ids(a, b) for a, b in pairs] if pairs else self.rng.choices(self.sum_rows, k=n)
        ids, out = torch.full((len(rows), 10), self.eos), torch.full((len(rows), 10), -1)
        for i, (d, at) in enumerate(rows):
            ids[i, :len(d) - 1] = torch.tensor(d[:-1])
            out[i, at - 1:len(d) - 1] = torch.tensor(d[at:])
        return ids, out

    def recall_list_ids(self, pairs):
        d = [self.bos] + self.ages
        for i, (name, age) in enumerate(pairs):
            d += [self.comma] * (i > 0) + [self.name[name], self.space] + self.number(age)
        return d + [self.dot]

    def recall_question(self, name, age):
        return [self.name[name], self.ask, self.space] + self.number(age) + [self.eos]

    def recalls(self, n, tests=None):
        """Asks about every name of a list. Each question is a separate branch, which sees the list
        and itself, at the positions it would have if it were the only one. So the model meets the
        documents exactly as at inference and the list is paid for once.
        """
        k = self.rng.choice((2, 3, 4, 4, 5, 5, 6, 6))
        lists = [corpus.recall_list(self.rng, n=k) for _ in range(n)] if tests is None else tests
        rows = []
        for pairs in lists:
            d = self.recall_list_ids(pairs)
            pos, branch, want = list(range(len(d))), [0] * len(d), [-1] * len(d)
            head = len(d)
            for b, (name, age) in enumerate(pairs, 1):
                q = self.recall_question(name, age)
                d += q[:-1]
                pos += range(head, head + len(q) - 1)
                branch += [b] * (len(q) - 1)
                want += [-1] + q[2:]
            rows.append((d, pos, branch, want))
        T = max(len(r[0]) for r in rows)
        ids, out = torch.full((len(rows), T), self.eos), torch.full((len(rows), T), -1)
        pos, br = torch.zeros(len(rows), T, dtype=torch.long), torch.full((len(rows), T), 99)
        for i, (d, p, b, wnt) in enumerate(rows):
            ids[i, :len(d)], pos[i, :len(d)] = torch.tensor(d), torch.tensor(p)
            br[i, :len(d)], out[i, :len(d)] = torch.tensor(b), torch.tensor(wnt)
        mask = (br[:, None, :] == 0) | (br[:, None, :] == br[:, :, None])
        mask = mask & torch.ones(T, T, dtype=torch.bool).tril()
        return ids, out, pos, mask[:, None]


# ---------------------------------------------------------------- optimizer


def orthogonalize(g):
    """Newton-Schulz toward the nearest orthogonal matrix (Muon's step)."""
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.T if tall else x


class Optimizer:
    """Muon for the matrices, distributed over the processes; AdamW for the rest."""

    def __init__(self, w, rank, world):
        self.w, self.rank, self.world = w, rank, world
        self.matrices = [n for n in w if model.is_matrix(n)]
        self.rest = [n for n in w if not model.is_matrix(n)]
        self.mom = {n: torch.zeros_like(w[n]) for n in self.matrices}
        self.m = {n: torch.zeros_like(w[n]) for n in self.rest}
        self.v = {n: torch.zeros_like(w[n]) for n in self.rest}
        self.t = 0

    def step(self, grads, lr, lr_embd, decay):
        self.t += 1
        flat = []
        for i, n in enumerate(self.matrices):
            m = self.mom[n].mul_(0.95).add_(grads[n], alpha=0.05)
            if i % self.world == self.rank:
                o = orthogonalize(grads[n] * 0.05 + m * 0.95)
                flat.append(o * max(1.0, o.shape[0] / o.shape[1]) ** 0.5)
            else:
                flat.append(torch.zeros_like(m))
        buf = torch.cat([f.reshape(-1) for f in flat])
        if self.world > 1:
            dist.all_reduce(buf)
        at = 0
        for n in self.matrices:
            k = self.w[n].numel()
            self.w[n].mul_(1 - lr * decay).sub_(buf[at:at + k].view_as(self.w[n]), alpha=lr)
            at += k
        for n in self.rest:
            g = grads[n]
            m, v = self.m[n].mul_(0.9).add_(g, alpha=0.1), self.v[n].mul_(0.95).addcmul_(g, g, value=0.05)
            step = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.95**self.t)).sqrt() + 1e-8)
            self.w[n].sub_(step, alpha=lr_embd)


# ---------------------------------------------------------------- evaluation


def effective(w, ternary):
    if not ternary:
        return dict(w)
    out = {}
    for n, x in w.items():
        if model.is_matrix(n):
            codes, scale = model.ternarize(x)
            x = codes * scale
        out[n] = x
    return out


@torch.no_grad()
def exact(c, w, ids, targets, quant, positions=None, mask=None):
    """Which rows are right at every target: teacher forcing agrees with greedy on exactly these."""
    good = []
    for s in range(0, len(ids), 128):
        i, t = ids[s:s + 128], targets[s:s + 128]
        p = positions[s:s + 128] if positions is not None else None
        m = mask[s:s + 128] if mask is not None else None
        best = model.forward(c, w, i, positions=p, mask=m, quant=quant).argmax(-1).view_as(t)
        good.append(((best == t) | (t < 0)).all(1))
    return torch.cat(good)


@torch.no_grad()
def complete(c, w, ids, n, quant, eos):
    ids = list(ids)
    for _ in range(n):
        logits = model.forward(c, w, torch.tensor([ids]), quant=quant, pick=torch.tensor([len(ids) - 1]))
        ids.append(int(logits.argmax()))
        if ids[-1] == eos:
            break
    return ids


def recall_eval_batch(b, count, seed=1704):
    """The held-out recalls of corpus.recall_test, as a padded batch with a single question each."""
    rows = []
    for prompt, answer in corpus.recall_test(count, seed):
        p, a = [b.bos] + b.t.encode(prompt).ids, b.t.encode(answer).ids + [b.eos]
        rows.append((p + a, len(p)))
    T = max(len(d) for d, _ in rows) - 1
    ids, out = torch.full((len(rows), T), b.eos), torch.full((len(rows), T), -1)
    for i, (d, at) in enumerate(rows):
        ids[i, :len(d) - 1] = torch.tensor(d[:-1])
        out[i, at - 1:len(d) - 1] = torch.tensor(d[at:])
    return ids, out


# ---------------------------------------------------------------- the run


def lr_share(f):
    """Warm up for 1 % of the time, hold, and go down to 0 over the last 60 %."""
    return min(1.0, f / 0.01 + 0.02) * (1.0 if f < 0.4 else max(0.0, (1 - f) / 0.6))


def worker(rank, world, a):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        dist.init_process_group("gloo", rank=rank, world_size=world)
    c = model.Config(layers=a.layers, ffn=a.ffn)
    w = model.init_weights(c)
    opt = Optimizer(w, rank, world)
    step, before, seen = 0, 0.0, 0
    ckpt = os.path.join(a.out, "ckpt.pt")
    source = ckpt if a.resume and os.path.exists(ckpt) else a.init
    if source:
        s = torch.load(source, weights_only=False)
        for n in w:
            w[n].copy_(s["w"][n])
        if source == ckpt:
            step, before, seen = s["step"], s["elapsed"], s["tokens"]
            opt.t = s["t"]
            for n in opt.mom:
                opt.mom[n].copy_(s["mom"][n])
            for n in opt.m:
                opt.m[n].copy_(s["m"][n]), opt.v[n].copy_(s["v"][n])
    b = Batches(1000 * (step + 1) + rank)
    log = open(os.path.join(a.out, "log.jsonl"), "a") if rank == 0 else None
    start = time.time()
    f = before / a.seconds
    next_eval = before + a.eval_every
    test_sums = b.sums(pairs=b.test_sums[:500])
    test_recalls = recall_eval_batch(b, 200)
    share = {"story": a.story, "sum": a.sum, "recall": a.recall}
    running = {k: None for k in share}
    while f < 1.0:
        ternary = f >= a.float_share
        eff = {n: x.detach().requires_grad_() for n, x in effective(w, ternary).items()}
        for kind in ("story", "sum", "recall"):
            n = max(2, round(share[kind]))
            positions = mask = None
            if kind == "story":
                ids, target = b.stories(n)
            elif kind == "sum":
                ids, target = b.sums(n)
            else:
                ids, target, positions, mask = b.recalls(n)
            target = target.reshape(-1)
            rows = (target >= 0).nonzero()[:, 0]
            logits = model.forward(c, eff, ids, positions, mask, quant=ternary, pick=rows)
            loss = F.cross_entropy(logits, target[rows])
            (loss * a.weight[kind]).backward()
            seen += ids.numel() * world
            v = float(loss.detach())
            running[kind] = v if running[kind] is None else 0.95 * running[kind] + 0.05 * v
        names = list(w)
        mine = before + time.time() - start
        buf = torch.cat([eff[n].grad.reshape(-1) for n in names] + [torch.tensor([mine if rank == 0 else 0.0])])
        if world > 1:
            dist.all_reduce(buf)
            buf[:-1] /= world
        elapsed = float(buf[-1])
        f = elapsed / a.seconds
        grads, at = {}, 0
        for n in names:
            k = w[n].numel()
            grads[n] = buf[at:at + k].view_as(w[n])
            at += k
        s = lr_share(f)
        opt.step(grads, a.lr * s, a.lr_embd * s, a.decay)
        step += 1
        if step % 20 == 0 and rank == 0:
            print(f"step {step} {elapsed:.0f}s {seen / max(1, elapsed):.0f} tok/s", {k: round(v, 3) for k, v in running.items()}, flush=True)
        if elapsed >= next_eval or f >= 1.0:
            next_eval = elapsed + a.eval_every
            res = torch.zeros(2)
            if rank == 0:
                tern = effective(w, True)
                quant = True
                if not ternary:
                    tern, quant = dict(w), False
                es = exact(c, tern, *test_sums, quant).float().mean()
                er = exact(c, tern, *test_recalls, quant).float().mean()
                res[0], res[1] = es, er
                sample = b.t.decode(complete(c, tern, [b.bos] + b.t.encode("One day, Mia").ids, 60, quant, b.eos))
                rec = {"step": step, "seconds": round(elapsed), "tokens": seen, "ternary": ternary, "lr": round(a.lr * s, 5),
                       "loss": {k: round(v, 4) for k, v in running.items()}, "sums": round(float(es), 4),
                       "recalls": round(float(er), 4), "batch": {k: round(v) for k, v in share.items()}, "sample": sample}
                print(json.dumps(rec), flush=True)
                log.write(json.dumps(rec) + "\n")
                log.flush()
                torch.save({"w": w, "mom": opt.mom, "m": opt.m, "v": opt.v, "t": opt.t, "step": step, "elapsed": elapsed,
                            "tokens": seen, "config": c.to_dict()}, ckpt + ".tmp")
                os.replace(ckpt + ".tmp", ckpt)
            if world > 1:
                dist.broadcast(res, 0)
            # Kinds that are already learnt get a smaller share.
            share["sum"] = a.sum * (0.5 if res[0] >= 0.995 else 1.0)
            share["recall"] = a.recall * (0.4 if res[1] >= 0.99 else 1.0)
    if world > 1:
        dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=5400)
    p.add_argument("--init")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--port", type=int, default=29511)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--ffn", type=int, default=512)
    p.add_argument("--float-share", type=float, default=0.25)
    p.add_argument("--eval-every", type=float, default=120)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--lr-embd", type=float, default=0.004)
    p.add_argument("--decay", type=float, default=0.05)
    p.add_argument("--story", type=float, default=6, help="documents of a kind in one process's step")
    p.add_argument("--sum", type=float, default=96)
    p.add_argument("--recall", type=float, default=12)
    a = p.parse_args()
    a.weight = {"story": 1.0, "sum": 1.0, "recall": 1.0}
    os.makedirs(a.out, exist_ok=True)
    if a.workers == 1:
        worker(0, 1, a)
    else:
        mp.spawn(worker, (a.workers, a), nprocs=a.workers)


if __name__ == "__main__":
    main()

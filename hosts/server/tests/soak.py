"""Random clients for a time, half of it with the demo model and half with the echo model: `soak.py SECONDS [SEED]`. Memory,
descriptors and threads must stay as they were after the warm-up, a fifth of the time, and all must end."""
import json
import os
import random
import socket
import sys
import threading
import time

from support import Server, request

CLIENTS = 12
QUEUE = 24
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close sends a reset
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}]
PROMPTS = ["Once upon a time", "The quick brown fox jumps", "abcdefgh" * 8]


def body_of(dice, **more):
    return {"prompt": dice.choice(PROMPTS), "max_tokens": dice.randrange(1, 60), "seed": dice.randrange(99), "ignore_eos": True, **more}


def read_to_end(s, pause=0.0):
    data = b""
    while b"\r\n0\r\n\r\n" not in data[-7:] or not data:
        more = s.recv(4096 if pause else 1 << 16)
        if not more:
            break
        data += more
        if data.startswith(b"HTTP/1.1") and b"Content-Length: " in data[:600] and b"\r\n\r\n" in data:
            head, _, rest = data.partition(b"\r\n\r\n")
            if len(rest) >= int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]):
                break
        time.sleep(pause)
    return data


def status_of(s, pause=0.0):
    data = read_to_end(s, pause)
    s.close()
    return data[9:12].decode() or "closed"


def whole(server, dice):
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    asked = [("/v1/completions", body_of(dice, n=2, logprobs=2)), ("/v1/embeddings", {"input": ["one", "two three"]}),
             ("/tokenize", {"text": "abc " * dice.choice([1, 9000])}), ("/v1/completions", body_of(dice, prompt_logprobs=2)),
             ("/v1/rerank", {"query": "fox", "documents": PROMPTS, "return_documents": dice.random() < 0.5})]
    if server.chats:
        asked += [("/v1/chat/completions", chat), ("/v1/messages", chat), ("/v1/responses", {"input": "hi", "max_output_tokens": 9}),
                  ("/v1/responses", {"input": "hi", "max_output_tokens": 200, "tools": TOOLS, "tool_choice": "required", "stream": True})]
    path, body = dice.choice(asked)
    return status_of(server.raw(request(path, json.dumps(body))))


def batch(server, dice):
    body = {"prompts": PROMPTS, "max_tokens": 20, "stream": dice.random() < 0.5}
    return status_of(server.raw(request("/generate/batch", json.dumps(body))))


def stream(server, dice):
    return status_of(server.raw(request("/v1/completions", json.dumps(body_of(dice, stream=True)))))


def slow_reader(server, dice):
    s = server.raw(request("/v1/completions", json.dumps(body_of(dice, stream=True, logprobs=5))), room=4096)
    return status_of(s, 0.02)


def hang_up(server, dice):
    body = body_of(dice, stream=dice.random() < 0.5, user="x" * dice.choice([1, 20000]))
    s = server.raw(request("/v1/completions", json.dumps(body)))
    time.sleep(dice.random() / 20)
    if dice.random() < 0.5:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    s.close()
    return "gone"


def slow_sender(server, dice):
    data = request("/v1/completions", json.dumps(body_of(dice)))
    s = server.raw(b"")
    for at in range(0, len(data), 40):
        s.sendall(data[at:at + 40])
        time.sleep(0.005)
        if dice.random() < 0.02:
            s.close()
            return "gone"
    return status_of(s)


def malformed(server, dice):
    data = bytearray(request("/v1/completions", json.dumps(body_of(dice))))
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data))
        data[at:at + dice.randrange(3)] = dice.choice([b"", b"{", b"\xff", b"\0", b"\r\n", b"-1", b"]"])
    s = server.raw(bytes(data))
    s.shutdown(socket.SHUT_WR)
    return "4xx" if status_of(s).startswith("4") else "malformed"


def burst(server, dice):
    sockets = [server.raw(request("/v1/completions", json.dumps(body_of(dice, stream=True)))) for _ in range(2 * QUEUE)]
    statuses = [status_of(s) for s in sockets]
    return "burst " + "/".join(sorted(set(statuses)))


KINDS = [whole] * 5 + [stream] * 5 + [hang_up] * 4 + [batch, slow_reader, slow_sender, malformed, malformed]


def client(server, dice, end, counts, wrong):
    while time.monotonic() < end and not wrong:
        kind = burst if dice.random() < 0.01 else dice.choice(KINDS)
        try:
            name = kind.__name__ + ": " + kind(server, dice)
        except (ConnectionError, BrokenPipeError):
            name = kind.__name__ + ": reset"
        except Exception as error:  # a timeout: something hangs
            wrong.append(f"{kind.__name__}: {error!r}")
            return
        counts[name] = counts.get(name, 0) + 1


def use_of(server):
    """Resident MiB, descriptors and threads, once nothing runs."""
    server.until(lambda stats: (stats["exchanges"], stats["unreleased"], stats["working"]) == (1, 0, 0), "the end of all")
    time.sleep(1)  # connections that were closed
    process = f"/proc/{server.process.pid}"
    with open(process + "/statm") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    return resident, len(os.listdir(process + "/fd")), len(os.listdir(process + "/task"))


def run(server, seconds, seed, counts):
    end, wrong = time.monotonic() + seconds, []
    threads = [threading.Thread(target=client, args=(server, random.Random(f"{seed} {i}"), end, counts, wrong)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return use_of(server)


def soak(seconds, seed, **model):
    server, counts = Server(max_batch=8, queue=QUEUE, max_unread=65536, receive_timeout=5, **model), {}
    try:
        server.chats = server.get("/v1/models")[1]["data"][0]["chat"]
        before = run(server, seconds / 5, seed, counts)
        after = run(server, seconds * 4 / 5, seed + 1, counts)
        tokens = server.stats()["generated_tokens"]
    finally:
        code = server.stop()
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    print(f"{model}, seed {seed}: {sum(counts.values())} clients, {tokens} tokens; resident MiB, descriptors, threads {before} then {after}")
    assert code == 0, code
    assert after[1:] == before[1:], "descriptors or threads"
    assert after[0] < before[0] * 1.25 + 8, "memory"
    assert not [name for name in counts if ": 5" in name or name == "whole: 400"], "an error of the server's own"


def main(seconds, seed):
    soak(seconds / 2, seed)
    soak(seconds / 2, seed, model="builtin:echo")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6))

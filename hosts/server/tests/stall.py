"""`stall.py [SECONDS]` prints the time between two tokens of a stream, quiet and beside four clients that send 4 MiB of text
or 260,000 token ids, one body after the other."""
import json
import multiprocessing
import os
import socket
import sys
import time

from support import Server, request

TEXT = request("/tokenize", json.dumps({"text": "the quick brown fox " * 205000}))
IDS = request("/v1/completions", json.dumps({"prompt": [7] * 260000, "max_tokens": 1}))


def sender(port, data, answers):
    os.nice(10)  # clients are elsewhere, as a rule
    while True:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(data.replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n", 1))
            while s.recv(1 << 20):
                pass
        with answers.get_lock():
            answers.value += 1


def gaps(server, seconds):
    """Milliseconds, sorted."""
    s = server.open_stream({"prompt": "abcdefgh", "max_tokens": 60000, "ignore_eos": True})
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        s.recv(1 << 16)
        times.append(time.monotonic())
    s.close()
    return sorted((b - a) * 1000 for a, b in zip(times, times[1:]))


def tell(name, values):
    at = lambda part: values[int(len(values) * part)]
    print(f"{name}: {len(values)} gaps, p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, at most {values[-1]:.2f} ms")
    return at(0.99)


def main(seconds):
    server, answers = Server(model="builtin:echo?us_per_token=5000", context=1 << 16), multiprocessing.Value("i", 0)
    quiet = tell("quiet", gaps(server, seconds))
    senders = [multiprocessing.Process(target=sender, args=(server.port, data, answers), daemon=True) for data in (TEXT, IDS) * 2]
    for process in senders:
        process.start()
    busy = tell("beside four", gaps(server, seconds))
    print(f"{answers.value} long bodies were answered; p99 {busy / quiet:.2f} times the quiet one")
    for process in senders:
        process.terminate()
    server.process.kill()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)

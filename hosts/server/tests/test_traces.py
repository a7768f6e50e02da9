"""Traces: a W3C traceparent in, OTLP over HTTP out to a collector of our own."""
import http.server
import json
import signal
import socket
import subprocess
import threading
import time
import unittest

from support import PROGRAM, Server, wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"prompt": "abcdefgh", "max_tokens": 6, "ignore_eos": True}


class Collector:
    """Keeps the spans that it is sent, and answers with `status`; None: not at all."""

    def __init__(self):
        outer = self
        self.status, self.spans, self.posts, self.silent = 200, [], [], threading.Event()
        self.pause = 0  # seconds before an answer

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.posts.append((self.path, self.headers["Content-Type"], body))
                if outer.status is None:
                    outer.silent.wait()
                    return
                time.sleep(outer.pause)
                if outer.status == 200:
                    outer.spans += body["resourceSpans"][0]["scopeSpans"][0]["spans"]
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def wait(self, count):
        wait_until(lambda: len(self.spans) >= count, f"{count} spans")
        return self.spans

    def close(self):
        """Ends the requests that got no answer, too."""
        self.silent.set()
        self.http.shutdown()
        self.http.server_close()


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


class Traces(unittest.TestCase):
    def setUp(self):
        self.collector = Collector()
        self.server = Server(model="builtin:echo", context=4096, otlp_endpoint=self.collector.url)

    def tearDown(self):
        self.collector.close()
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.stop()

    def ask(self, traceparent=None, **more):
        headers = {"traceparent": traceparent} if traceparent else None
        return self.server.request("POST", "/v1/completions", {**BODY, **more}, headers)[0]

    def test_a_request_is_a_tree_of_spans(self):
        before = time.time_ns()
        self.assertEqual(self.ask(f"00-{TRACE}-{PARENT}-01"), 200)
        spans = {span["name"]: span for span in self.collector.wait(4)}
        self.assertEqual(set(spans), {"POST /v1/completions", "queued", "prefill", "decode"})
        root = spans.pop("POST /v1/completions")
        self.assertEqual((root["traceId"], root["parentSpanId"], root["kind"]), (TRACE, PARENT, 2))
        self.assertEqual(attributes(root)["http.response.status_code"], "200")
        self.assertEqual(attributes(root)["gen_ai.usage.output_tokens"], "6")
        self.assertEqual(attributes(root)["gen_ai.request.model"], "echo")
        self.assertLessEqual(before, int(root["startTimeUnixNano"]))
        last = int(root["startTimeUnixNano"])
        for name in ("queued", "prefill", "decode"):
            span = spans[name]
            self.assertEqual((span["traceId"], span["parentSpanId"], span["kind"]), (TRACE, root["spanId"], 1))
            self.assertLessEqual(last, int(span["startTimeUnixNano"]))
            last = int(span["endTimeUnixNano"])
        self.assertLessEqual(last, int(root["endTimeUnixNano"]))
        self.assertEqual(attributes(spans["decode"]), {"bn.tokens": "6", "bn.cached_tokens": "0", "bn.finish_reason": "length"})
        self.assertEqual(len({span["spanId"] for span in [root, *spans.values()]}), 4)
        path, kind, body = self.collector.posts[0]
        self.assertEqual((path, kind), ("/v1/traces", "application/json"))
        resource = body["resourceSpans"][0]["resource"]
        self.assertEqual(attributes(resource)["service.name"], "bn-server")

    def test_traceparents_that_are_not_valid_begin_a_new_trace(self):
        bad = ["", "x", f"00-{TRACE}-{PARENT}", f"00-{TRACE.upper()}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01",
               f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-01-more", f"0g-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-0x",
               f"01-{TRACE}-{PARENT}-01more", f"00-{TRACE}_{PARENT}-01", f"00-{TRACE}-{PARENT}-1"]
        for value in bad:
            self.assertEqual(self.ask(value or " "), 200)
        spans = self.collector.wait(4 * len(bad))
        self.assertNotIn(TRACE, {span["traceId"] for span in spans})
        roots = [span for span in spans if span["kind"] == 2]
        self.assertEqual(len({span["traceId"] for span in roots}), len(bad))
        self.assertFalse(any(span.get("parentSpanId") for span in roots))

    def test_later_versions_of_traceparent_are_taken(self):
        self.assertEqual(self.ask(f"01-{TRACE}-{PARENT}-01-more"), 200)
        self.assertEqual({span["traceId"] for span in self.collector.wait(4)}, {TRACE})

    def test_what_the_client_does_not_sample_is_not_traced(self):
        self.assertEqual(self.ask(f"00-{TRACE}-{PARENT}-00"), 200)
        self.assertEqual(self.ask(f"00-{'1' * 32}-{PARENT}-01"), 200)
        self.assertEqual({span["traceId"] for span in self.collector.wait(4)}, {"1" * 32})

    def test_refused_requests_have_a_span_of_their_own(self):
        self.assertEqual(self.ask(temperature="hot"), 400)
        self.assertEqual(attributes(self.collector.wait(1)[0])["http.response.status_code"], "400")

    def test_a_client_that_hangs_up_ends_its_span(self):
        stream = self.server.open_stream({**BODY, "max_tokens": 4000})
        stream.close()
        root = next(span for span in self.collector.wait(4) if span["kind"] == 2)
        self.assertIn(attributes(root)["http.response.status_code"], ("200", "499"))

    def test_spans_that_the_collector_refuses_are_counted(self):
        self.collector.status = 503
        self.assertEqual(self.ask(), 200)
        self.until("bn_server_spans_dropped_total", 4)
        self.collector.status = 200
        self.assertEqual(self.ask(), 200)
        self.until("bn_server_spans_exported_total", 4)
        self.assertEqual(len(self.collector.spans), 4)

    def test_a_collector_that_is_gone_or_silent_holds_up_nobody(self):
        self.collector.status = None
        self.assertEqual(self.ask(), 200)
        wait_until(lambda: self.collector.posts, "a batch")
        self.assertGreater(self.spans_of(15, 100), 4096)  # more than the queue holds
        self.until("bn_server_spans_dropped_total", 1)
        self.assertEqual(self.server.stop(), 0)

    def test_what_waits_is_sent_before_the_server_ends(self):
        spans = self.spans_of(4, 100)
        self.assertEqual(self.server.stop(), 0)
        self.assertEqual(len(self.collector.spans), spans)

    def test_a_slow_collector_does_not_hold_up_the_end_for_long(self):
        self.collector.pause = 2
        spans = self.spans_of(12, 100)  # eight batches
        self.assertEqual(self.server.stop(), 0)
        self.assertLess(len(self.collector.spans), spans)

    def spans_of(self, requests, n):
        """Asks; returns how many spans that makes: one for the request, three for each answer."""
        for _ in range(requests):
            self.assertEqual(self.ask(max_tokens=1, n=n), 200)
        return requests * (1 + 3 * n)

    def until(self, name, least):
        wait_until(lambda: self.server.metrics()[name] >= least, name)


class Endpoint(unittest.TestCase):
    def server(self, endpoint):
        server = Server(model="builtin:echo", otlp_endpoint=endpoint)
        self.addCleanup(server.process.kill)
        return server

    def test_endpoints_that_cannot_be_are_refused(self):
        for endpoint, words in [("https://127.0.0.1:4318", "no TLS"), ("127.0.0.1:4318", "begins with"), ("grpc://h:1", "begins with"),
                                ("http://127.0.0.1", "no port"), ("http://:4318", "no host"), ("http://h:4318?x", "query"),
                                ("http://u@h:4318", "user"), ("http://127.0.0.1:x", "no port"), ("http://127.0.0.1:65536", "no port")]:
            done = subprocess.run([PROGRAM, "--port", "0", "--otlp-endpoint", endpoint], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, endpoint)
            self.assertIn("--otlp-endpoint", done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_collector_that_does_not_listen(self):
        server = self.server("http://127.0.0.1:9/prefix/")
        for _ in range(3):
            self.assertEqual(server.post("/v1/completions", BODY)[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_answers_that_are_not_http(self):
        for answer in (b"\x1b[31m no such thing", b"HTTP/2.0 200 OK", b"HTTP/1.1 2xx", b"HT", b""):
            with socket.create_server(("127.0.0.1", 0)) as collector:
                server = self.server(f"http://127.0.0.1:{collector.getsockname()[1]}")
                self.assertEqual(server.post("/v1/completions", BODY)[0], 200)
                connection, _ = collector.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                server.process.send_signal(signal.SIGTERM)
                log = server.process.stderr.read()
                self.assertEqual(server.stop(), 0)
                self.assertIn("does not speak HTTP/1" if len(answer) > 2 else "closed the connection", log)
                self.assertNotIn("\x1b", log)

    def test_an_answer_without_end_is_not_read_to_it(self):
        with socket.create_server(("127.0.0.1", 0)) as collector:
            server = self.server(f"http://127.0.0.1:{collector.getsockname()[1]}")
            self.assertEqual(server.post("/v1/completions", BODY)[0], 200)
            connection, _ = collector.accept()
            with connection, self.assertRaises(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                for _ in range(10000):  # 640 MB
                    connection.sendall(bytes(65536))
            self.assertEqual(server.stop(), 0)

    def test_each_address_of_a_name_is_tried(self):
        # If localhost is ::1 as well, no server listens there.
        collector = Collector()
        server = self.server(f"http://localhost:{collector.http.server_port}")
        while not collector.spans:
            self.assertEqual(server.post("/v1/completions", BODY)[0], 200)
            time.sleep(0.1)
        self.assertEqual(server.stop(), 0)
        collector.close()

    def test_without_an_endpoint_there_are_no_spans(self):
        server = Server(model="builtin:echo")
        self.assertEqual(server.request("POST", "/v1/completions", BODY, {"traceparent": f"00-{TRACE}-{PARENT}-01"})[0], 200)
        now = server.metrics()
        self.assertEqual((now["bn_server_spans_exported_total"], now["bn_server_spans_dropped_total"]), (0, 0))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()

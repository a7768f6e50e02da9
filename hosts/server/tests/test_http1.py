"""RFC 9112 by raw sockets: refused and accepted requests; bytes after a refused one never count as a second request. hyper
reads HTTP/1.1. Where it refuses, its answer is bare; where it takes more than the standard does, the request is one all the
same, and what follows it another."""
import json
import os
import random
import re
import unittest

from support import ServerTest, read_all

HOST = b"Host: localhost\r\n"
BODY = json.dumps({"text": "ab"}).encode()
SECOND = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"  # hidden by an attacker in a body or after a head
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


def get(fields=HOST, line=b"GET /health HTTP/1.1\r\n"):
    return line + fields + b"\r\n"


def post(fields, body=BODY, version=b"1.1"):
    return b"POST /tokenize HTTP/" + version + b"\r\n" + HOST + fields + b"\r\n" + body


def chunks(*parts, end=b"0\r\n\r\n"):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


LENGTH = b"Content-Length: %d\r\n" % len(BODY)

REFUSED = {
    # How requests are smuggled.
    "two different lengths": (400, post(LENGTH + b"Content-Length: 3\r\n")),
    "a list of lengths": (400, post(b"Content-Length: 14, 14\r\n")),
    "a length with a sign": (400, post(b"Content-Length: +14\r\n")),
    "a negative length": (400, post(b"Content-Length: -14\r\n")),
    "an empty length": (400, post(b"Content-Length: \r\n")),
    "a length in hex": (400, post(b"Content-Length: 0xe\r\n")),
    "a length with a space": (400, post(b"Content-Length: 1 4\r\n")),
    "a length beyond 64 bits": (400, post(b"Content-Length: 18446744073709551630\r\n")),
    "a space before the colon": (400, post(b"Content-Length : 14\r\n")),
    "a tab before the colon": (400, post(b"Transfer-Encoding\t: chunked\r\n", chunks(BODY))),
    "NUL in a value": (400, get(HOST + b"X: a\0b\r\n")),
    "NUL in a name": (400, get(HOST + b"X\0Y: a\r\n")),
    "another coding after chunked": (400, post(b"Transfer-Encoding: chunked, identity\r\n", chunks(BODY))),
    "a coding like chunked": (400, post(b"Transfer-Encoding: xchunked\r\n", chunks(BODY))),
    "chunked twice": (400, post(b"Transfer-Encoding: chunked, chunked\r\n", chunks(BODY))),
    "chunked in two fields": (400, post(b"Transfer-Encoding: chunked\r\n" * 2, chunks(BODY))),
    "an empty coding": (400, post(b"Transfer-Encoding:\r\n")),
    "identity": (400, post(b"Transfer-Encoding: identity\r\n")),
    "a vertical tab before chunked": (400, post(b"Transfer-Encoding: \x0bchunked\r\n", chunks(BODY))),
    "a coding below chunked": (501, post(b"Transfer-Encoding: gzip, chunked\r\n", chunks(BODY))),
    "chunks in HTTP/1.0": (400, post(b"Transfer-Encoding: chunked\r\n", chunks(BODY), b"1.0")),
    # Lines.
    "bare CR in a value": (400, get(HOST + b"X: a\rb\r\n")),
    "a folded line": (400, get(HOST + b"X: a\r\n b\r\n")),
    "white space before the first field": (400, b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n"),
    "a field without a colon": (400, get(HOST + b"nothing\r\n")),
    "a field without a name": (400, get(HOST + b": a\r\n")),
    "a name that is no token": (400, get(HOST + b"X(Y): a\r\n")),
    "a control character in a value": (400, get(HOST + b"X: a\x01b\r\n")),
    "DEL in a value": (400, get(HOST + b"X: a\x7fb\r\n")),
    "too many fields": (431, get(HOST + b"X: y\r\n" * 200)),
    "too long a field": (431, get(HOST + b"X: " + b"y" * 20000 + b"\r\n")),
    "too long a line": (431, b"GET /" + b"y" * 20000 + b" HTTP/1.1\r\n"),
    # Request lines.
    "no version": (400, b"GET /health\r\n\r\n"),
    "two spaces": (400, get(line=b"GET  /health HTTP/1.1\r\n")),
    "a space at the end": (400, get(line=b"GET /health HTTP/1.1 \r\n")),
    "a tab for a space": (400, get(line=b"GET\t/health HTTP/1.1\r\n")),
    "a method that is no token": (400, get(line=b"G(T /health HTTP/1.1\r\n")),
    "no method": (400, get(line=b" /health HTTP/1.1\r\n")),
    "HTTP in small letters": (400, get(line=b"GET /health http/1.1\r\n")),
    "a version of two digits": (400, get(line=b"GET /health HTTP/1.10\r\n")),
    "a later minor version": (400, get(line=b"GET /health HTTP/1.7\r\n")),
    "a later version": (400, get(line=b"GET /health HTTP/2.0\r\n")),
    "a target with no slash": (400, get(line=b"GET health HTTP/1.1\r\n")),
    "a target beyond ASCII": (400, get(line=b"GET /h\xc3\xa9 HTTP/1.1\r\n")),
    "a target with a bad code": (400, get(line=b"GET /health%2 HTTP/1.1\r\n")),
    "a target with a coded NUL": (400, get(line=b"GET /health%00x HTTP/1.1\r\n")),
    "an authority as a target": (400, get(line=b"CONNECT x:80 HTTP/1.1\r\n")),
    "an asterisk with GET": (400, get(line=b"GET * HTTP/1.1\r\n")),
    "an absolute target without a host": (400, get(line=b"GET http:///health HTTP/1.1\r\n")),
    "an absolute target with a user": (400, get(line=b"GET http://u@x/health HTTP/1.1\r\n")),
    "an absolute target with a port alone": (400, get(line=b"GET http://:80/health HTTP/1.1\r\n")),
    "an absolute target with two ports": (400, get(line=b"GET http://x:8:0/health HTTP/1.1\r\n")),
    "an absolute target with a bracket": (400, get(line=b"GET http://[/health HTTP/1.1\r\n")),
    "an absolute target with a query alone": (400, get(line=b"GET http://?x HTTP/1.1\r\n")),
    **{f"a target with {c}": (400, get(line=b"GET /health%s HTTP/1.1\r\n" % c.encode())) for c in '"<>[\\]^`{|}'},
    **{f"a query with {c}": (400, get(line=b"GET /health?x%s HTTP/1.1\r\n" % c.encode())) for c in '"<>[\\]^`{|}'},
    "a query with a bad code": (400, get(line=b"GET /health?x=%zz HTTP/1.1\r\n")),
    "a query that ends in a code": (400, get(line=b"GET /health?x=%2 HTTP/1.1\r\n")),
    # Fields that must be valid.
    "no Host": (400, get(b"")),
    "two Hosts": (400, get(HOST + HOST)),
    "two Hosts in HTTP/1.0": (400, get(HOST + HOST, b"GET /health HTTP/1.0\r\n")),
    "a Host that is none": (400, get(b"Host: x/y\r\n")),
    "a Host with a user": (400, get(b"Host: u@x\r\n")),
    **{f"a Host that is {host}": (400, get(b"Host: %s\r\n" % host.encode())) for host in [
        "a:b:c", "x:8:0", "x:8a", ":80", ":", "[", "]", "[]", "[::1", "::1", "[::1]80", "[::1]:8a", "[::1]x", "x[::1]", "[::1%25lo]",
        "[1:2:3:4:5:6:7]", "[1:2:3:4:5:6:7:8:9]", "[1::2::3]", "[12345::]", "[::g]", "[::1.2.3]", "[::1.2.3.400]",
        "[v.x]", "[v1.]", "[vx.y]", "[v1]", "[v1.%41]", "x%4", "x%zz", "x%", "a b", "a\"b", "a?b"]},
    "no Host, but an absolute target": (400, get(b"", b"GET http://x/health HTTP/1.1\r\n")),
    "an unknown expectation": (417, post(LENGTH + b"Expect: wonders\r\n")),
    # Chunks.
    "bare LF after a chunk's size": (400, CHUNKED + b"\r\ne\n" + BODY + b"\r\n0\r\n\r\n"),
    "bare LF after a chunk": (400, CHUNKED + b"\r\ne\r\n" + BODY + b"\n0\r\n\r\n"),
    "nothing after a chunk": (400, CHUNKED + b"\r\ne\r\n" + BODY + b"0\r\n\r\n"),
    "a longer chunk than its size": (400, CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size with a sign": (400, CHUNKED + b"\r\n+e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size with 0x": (400, CHUNKED + b"\r\n0xe\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a space before a size": (400, CHUNKED + b"\r\n e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an empty size": (400, CHUNKED + b"\r\n\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size beyond 64 bits": (400, CHUNKED + b"\r\n1000000000000000e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "bare CR in an extension": (400, CHUNKED + b"\r\ne;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a quoted CR in an extension": (400, CHUNKED + b"\r\ne;a=\"\\\r\"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an endless quoted extension": (400, CHUNKED + b"\r\ne;a=\"" + b"\\a" * 20000 + b"\"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "endless extensions": (400, CHUNKED + b"\r\ne;" + b"a" * 40000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "endless trailers": (400, CHUNKED + b"\r\n" + chunks(BODY, end=b"0\r\n" + b"X: y\r\n" * 8000)),
    "a trailer that is no field": (400, CHUNKED + b"\r\n" + chunks(BODY, end=b"0\r\nnothing\r\n\r\n")),
    "a folded trailer": (400, CHUNKED + b"\r\n" + chunks(BODY, end=b"0\r\nX: y\r\n z\r\n\r\n")),
}

TAKEN = {
    "a plain one": get(),
    "an empty line in front": b"\r\n" + get(),
    "names in any case": post(b"cOnTeNt-LeNgTh: 14\r\n"),
    "no white space after the colon, and much": post(b"Content-Length:14\r\nX: \t y \t \r\n"),
    "zeros before a length": post(b"Content-Length: 0014\r\n"),
    "bytes beyond ASCII in a value": get(HOST + b"X: \xc3\xa9\xff\r\n"),
    "a value that is empty": get(HOST + b"X:\r\n"),
    "a Host that is empty": get(b"Host:\r\n"),
    **{f"the Host {host}": get(b"Host: %s\r\n" % host.encode()) for host in [
        "[::1]:80", "[::]", "[1:2:3:4:5:6:7:8]", "[1::8]:", "[::ffff:1.2.3.4]", "[v1f.a:b~]:1", "a.b-c_d~:8080", "x:", "%41!$&'()*+,;=", "1.2.3.4:5"]},
    "HTTP/1.0 without a Host": get(b"", b"GET /health HTTP/1.0\r\n"),
    "an absolute target": get(line=b"GET http://x/health?y HTTP/1.1\r\n"),
    "an absolute target without a path": get(line=b"GET HTTP://x?y HTTP/1.1\r\n"),
    "a query": get(line=b"GET /health?a=b%20&c=/? HTTP/1.1\r\n"),
    "all that a query may have": get(line=b"GET /health?a-z._~!$&'()*+,;=:@%e9/? HTTP/1.1\r\n"),
    "an absolute target with a port": get(line=b"GET http://[::1]:80/health HTTP/1.1\r\n"),
    "an absolute target with an empty port": get(line=b"GET http://x:/health HTTP/1.1\r\n"),
    "codes in a path": get(line=b"GET /%68ealth HTTP/1.1\r\n"),
    "chunks": CHUNKED + b"\r\n" + chunks(BODY[:5], BODY[5:]),
    "sizes in capitals with zeros": CHUNKED + b"\r\n00E\r\n" + BODY + b"\r\n000\r\n\r\n",
    "extensions": CHUNKED + b"\r\ne;a=b;c=\"d e\"\r\n" + BODY + b"\r\n0 ;x\r\n\r\n",
    "extensions with white space": CHUNKED + b"\r\ne \t; a\t =  b ; c = \"\" ;d\r\n" + BODY + b"\r\n0;e=\"f\" ;g\r\n\r\n",
    "quoted extensions": CHUNKED + b"\r\ne;a=\"\\\"\\\\;\t\xe9\\\xe9=,\"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"\r\n" + chunks(BODY, end=b"0\r\nX: y\r\nContent-Length: 3\r\n\r\n"),
    "chunked in capitals": post(b"Transfer-Encoding: CHUNKED\r\n", chunks(BODY)),
    "a body with GET": get(HOST + b"Content-Length: 3\r\n") + b"abc",
    "an unknown connection option": get(HOST + b"Connection: keep-alive, x\r\n"),
}


# Accepted, although the standard forbids it or only allows it. The following bytes are a separate request.
LENIENT = {
    # A line may end with LF alone (RFC 9112, 2.2).
    "bare LF in a head": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "one bare LF in a head": b"GET /health HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    # Leading empty lines may be ignored (the same section).
    "two empty lines in front": b"\r\n\r\n" + get(),
    # Equal lengths may stand for one (RFC 9110, 8.6).
    "two equal lengths": post(LENGTH + LENGTH),
    # A fragment is ignored, because it has no meaning here.
    "a target with a fragment": get(line=b"GET /health#x HTTP/1.1\r\n"),
    "a query with a fragment": get(line=b"GET /health?x#y HTTP/1.1\r\n"),
}

# Chunks that only hyper accepts. A request with any chunks is the last one of its connection.
LENIENT_CHUNKS = {
    # A length beside chunks does not count (RFC 9112, 6.1).
    "both lengths": CHUNKED + b"Content-Length: 4\r\n\r\n" + chunks(BODY),
    "both lengths, the other way round": post(b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunks(BODY)),
    # White space and extensions after a size are skipped up to the end of the line; only their length is bounded.
    "bare LF at the end": CHUNKED + b"\r\n" + chunks(BODY, end=b"0\r\n\n"),
    "a space after a size": CHUNKED + b"\r\ne \r\n" + BODY + b"\r\n0\r\n\r\n",
    "a size with many zeros": CHUNKED + b"\r\n" + b"0" * 40 + b"e\r\n" + BODY + b"\r\n0\r\n\r\n",
    "NUL in an extension": CHUNKED + b"\r\ne;a\0b\r\n" + BODY + b"\r\n0\r\n\r\n",
    "DEL in a quoted extension": CHUNKED + b"\r\ne;a=\"\x7f\"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "endless white space": CHUNKED + b"\r\ne" + b" " * 40000 + b";a\r\n" + BODY + b"\r\n0\r\n\r\n",
    **{f"the extension {text}": CHUNKED + b"\r\ne%s\r\n" % text.encode() + BODY + b"\r\n0\r\n\r\n" for text in [
        ";", ";;a", ";a;", "; ;a", ";=", ";=b", ";a=", ";a=;b", ";;=\"\"", ";a==b", ";a=b=c", ";a b", ";a=b c", ";a ", ";a=b ", " ", ";(",
        ";a=(", ";a=\"b", ";a=\"b\\\"", ";a=\"b\"c", ";a=\"b\" ", ";a=\"b\"\"c\"", ";\"a\"", ";a=b\"c\"", ";a=\xe9"]},
}


def statuses(data):
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", data)]


def is_last(data):
    """The last one of its connection: HTTP/1.0, and chunks, of which hyper takes more than the standard does."""
    return b"HTTP/1.0" in data or b"chunked" in data.lower()


class Rules(ServerTest):
    options = {"model": "builtin:echo", "max_header": 8192, "host": "0.0.0.0"}  # where any Host is allowed

    def answers(self, *parts, ends=True):
        s = self.server.raw(b"")
        try:
            for part in parts:
                s.sendall(part)
            if ends:
                s.shutdown(1)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(s)

    def test_what_is_not_valid_is_refused_and_the_connection_closed(self):
        for name, (status, data) in REFUSED.items():
            with self.subTest(name):
                answer = self.answers(data + SECOND * 3, ends=False)  # read to the end: it is the server that closes
                self.assertEqual(statuses(answer), [status], answer)
                self.assertIn(b"\r\nConnection: close\r\n", answer)
                if b"Content-Length: 0\r\n" not in answer:  # it is the server's own
                    self.assertIn(b'"code":"invalid_http"', answer)

    def test_what_is_valid_is_taken_and_the_next_one_too(self):
        for name, data in TAKEN.items():
            with self.subTest(name):
                answer = self.answers(data + SECOND)
                self.assertEqual(statuses(answer), [200] if is_last(data) else [200, 200], answer)
                self.assertEqual(b"\r\nConnection: close\r\n" in answer, is_last(data), answer)

    def test_what_is_taken_all_the_same_is_one_request(self):
        for name, data in {**LENIENT, **LENIENT_CHUNKS}.items():
            with self.subTest(name):
                answer = self.answers(data + SECOND * 2)
                self.assertEqual(statuses(answer), [200] if name in LENIENT_CHUNKS else [200] * 3, answer)
                self.assertEqual(b"Connection: close" in answer, name in LENIENT_CHUNKS, answer)
                self.assertEqual(answer.count(b'"running"'), 0 if name in LENIENT_CHUNKS else 2, answer)

    def test_all_of_them_byte_by_byte(self):
        for name, data in [*TAKEN.items(), *((name, data) for name, (_, data) in REFUSED.items() if len(data) < 300)]:
            with self.subTest(name):
                expected = [200] if name in TAKEN else [REFUSED[name][0]]
                parts = [data[i:i + 1] for i in range(len(data))]
                self.assertEqual(statuses(self.answers(*parts, ends=False) if name not in TAKEN else self.answers(*parts)), expected)

    def test_fields_of_an_answer_are_there_once(self):
        for data in (get(), get(b""), get(line=b"GET /nothing HTTP/1.1\r\n")):
            head = self.answers(data).partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
            names = [line.split(b":")[0].lower() for line in head]
            self.assertEqual(len(names), len(set(names)), names)
            self.assertTrue({b"date", b"content-type", b"content-length"} <= set(names), names)

    def test_bodies_of_refused_requests_are_no_requests(self):
        for line, status in [(b"POST /nothing HTTP/1.1\r\n", 404), (b"POST /health HTTP/1.1\r\n", 405)]:
            answer = self.answers(line + HOST + b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND + SECOND, ends=False)
            self.assertEqual(statuses(answer), [status])
            self.assertIn(b"Connection: close", answer)

    def test_what_the_path_allows_is_said(self):
        status, headers, _ = self.server.request("POST", "/health", "{}")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        status, headers, _ = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))

    def test_head_has_no_body(self):
        answer = self.answers(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + SECOND)
        head, _, rest = answer.partition(b"\r\n\r\n")
        self.assertIn(b"Content-Length: 15", head)
        self.assertTrue(rest.startswith(b"HTTP/1.1 200 OK\r\n"), rest)

    def test_a_body_is_asked_for_where_the_client_waits(self):
        s = self.server.raw(post(LENGTH + b"Expect: 100-continue\r\n", b""))
        self.assertEqual(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(BODY + SECOND)
        s.shutdown(1)
        self.assertEqual(statuses(read_all(s)), [200, 200])
        self.assertEqual(statuses(self.answers(post(LENGTH + b"Expect: 100-Continue\r\n"))), [100, 200])
        self.assertEqual(statuses(self.answers(post(b"Content-Length: 99999999\r\nExpect: 100-continue\r\n", b""), ends=False)), [413])
        self.assertEqual(statuses(self.answers(post(LENGTH + b"Expect: 100-continue\r\n", BODY, b"1.0"))), [200])

    def test_http_1_0_has_no_chunks(self):
        body = json.dumps({"prompt": "ab", "max_tokens": 4, "ignore_eos": True, "stream": True}).encode()
        s = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, rest = read_all(s).partition(b"\r\n\r\n")
        self.assertNotIn(b"Transfer-Encoding", head)
        self.assertIn(b"Connection: close", head)
        self.assertTrue(rest.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n"), rest)

    def test_many_requests_in_one_packet_are_answered_in_order(self):
        paths = [b"/health", b"/nothing", b"/v1/models", b"/v1/completions"] * 200
        answer = self.answers(b"".join(get(line=b"GET " + path + b" HTTP/1.1\r\n") for path in paths))
        self.assertEqual(statuses(answer), [200, 404, 200, 405] * 200)

    def test_requests_behind_a_stream_wait_for_its_end(self):
        body = json.dumps({"prompt": "ab", "max_tokens": 50, "ignore_eos": True, "stream": True}).encode()
        s = self.server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body + SECOND)
        data = b""
        while b'"model":"echo","running"' not in data and b'"running":' not in data:
            data += s.recv(1 << 16)
        self.assertLess(data.index(b"0\r\n\r\nHTTP/1.1 200 OK"), data.index(b'"running":'))
        s.close()

    def test_requests_that_were_changed_at_random(self):
        seeds = [data for data in TAKEN.values()] + [data for _, data in REFUSED.values() if len(data) < 300]
        dice = random.Random(int(os.environ.get("SEED", "1")))
        for _ in range(int(os.environ.get("MUTATIONS", "300"))):
            data = bytearray(dice.choice(seeds) + SECOND)
            for _ in range(dice.randrange(1, 5)):
                at = dice.randrange(len(data))
                data[at:at + dice.randrange(3)] = dice.choice([b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"0", b"f", b";", b"chunked", b"\xff", b"%", b"http://"])
            for status in statuses(self.answers(bytes(data))):
                self.assertIn(status, (100, 200, 400, 404, 405, 413, 414, 417, 431, 501, 505), data)
        self.assertEqual(self.server.get("/health")[0], 200)


if __name__ == "__main__":
    unittest.main()

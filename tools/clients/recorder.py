"""A loopback proxy that records an agent's requests to a server, and the responses."""

import http.client
import http.server
import threading
from typing import NamedTuple

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "proxy-connection", "te", "upgrade", "host"}


CUT = 0
"""The status of an exchange that the server did not finish."""


class Exchange(NamedTuple):
    method: str
    path: str
    body: bytes
    status: int
    answer: bytes


class Recorder(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = port
        self.exchanges = []
        self.root = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Ignores clients that hang up."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Keeps stderr empty."""

    def received(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def forward(self):
        body = self.received()
        server = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=600)
        kept = b""
        status = CUT
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            server.request(self.command, self.path, body or None, headers)
            answer = server.getresponse()
            status = answer.status
            self.send_response_only(status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            bare = self.command == "HEAD" or status in (204, 304)
            if not bare:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while not bare and (part := answer.read1(65536)):
                kept += part
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if not bare:
                self.wfile.write(b"0\r\n\r\n")
        except http.client.HTTPException as error:
            status = CUT
            self.close_connection = True
            kept += f"\n[{error!r}]".encode()
        except OSError:  # the agent hung up, or the server before it answered
            self.close_connection = True
        finally:
            server.close()
            self.server.exchanges.append(Exchange(self.command, self.path, body, status, kept))


for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
    setattr(Handler, f"do_{method}", Handler.forward)

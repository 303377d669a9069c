"""A table of hostile requests: what a visitor sends, and what may come back."""

from collections.abc import Iterator
from dataclasses import dataclass

REFUSED = (0, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 421, 431, 501, 505)
"""Statuses of an answer that gives nothing away; 0: the connection was closed without one."""

SCRIPT = "<script>alert(1)</script>"
HOSTS = (
    "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost.example",
    "192.0.2.1:{port}", "[2001:db8::1]:{port}", "0.0.0.0:{port}", "127.0.0.1:{port}@evil.example", "127.1:{port}",
    "2130706433", "0x7f.1", "localhost:99999999", "localhost:-1", "[::1", "::1", "localhost,evil.example",
    "localhost evil.example", "LOCALHOST.", "loc%61lhost", "", " ", "\x00", "\xff", "\t", "x" * 5000, SCRIPT, "../..",
)  # fmt: skip
ORIGINS = (
    "http://evil.example", "https://evil.example", "http://evil.example:{port}", "null", "", "file://", "http://",
    "http://127.0.0.1:1", "http://127.0.0.1:{port}.evil.example", "http://evil.example#http://127.0.0.1:{port}",
    "http://user@127.0.0.1:{port}@evil.example", "http://[broken", "chrome-extension://abc", "data:text/html,x",
    "http://localhost:{port}", "ftp://127.0.0.1:{port}", "\xff", SCRIPT, "http://127.0.0.1:{port}, http://evil.example",
)  # fmt: skip
TOKENS = ("", "x", "{token}x", "{short}", "{upper}", "null", "true", "%00", "' or 1=1", SCRIPT, "\xff" * 40)
PATHS = (
    "/static/../server.py", "/static/../../server.py", "/static/../../../../etc/passwd", "/static/%2e%2e/server.py",
    "/static/%2e%2e%2f%2e%2e%2fserver.py", "/static/..%2fserver.py", "/static/..%5cserver.py", "/static/..\\server.py",
    "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/....//....//etc/passwd", "/static/%252e%252e/server.py",
    "/static/index.html%00.js", "/static/%00", "/static/%ff", "/static/", "/static", "/static/.", "/static/..",
    "/static/./../hub.py", "/static/uplot/../../view.py", "//evil.example/", "/../../etc/passwd", "/etc/passwd",
    "/.git/config", "/proc/self/environ", "/%2e%2e/%2e%2e/etc/passwd", "/static/~root", "/static/C:\\x", "/server.py",
    "/static/" + "a/" * 1500, "/" + "a" * 9000, "/?" + "a=1&" * 3000, "/static/" + SCRIPT, "/nothing", "/events/",
    "/events/..", "/metrics/x", "/control/x", "/livez/x", "/readyz/..", "http://evil.example/", "*", "evil:443", "?",
)  # fmt: skip
METHODS = (
    "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "GET\x00", "G" * 5000, "PRI",
    "", "LOCK", "QUERY",
)  # fmt: skip
COMMANDS = (
    "", "{", "null", "[]", "1", '"stop"', "{}", '{"command": 1}', '{"command": null}', '{"command": ["stop"]}',
    '{"command": "stop", "arguments": []}', '{"command": "stop", "arguments": null}', '{"command": "stop", "more": 1}',
    '{"command": "exit"}', '{"command": "__class__"}', '{"command": "stop", "arguments": {"drain": "no"}}',
    '{"command": "stop", "arguments": {"__class__": true}}', '{"command": "add", "arguments": {"count": true}}',
    '{"command": "add", "arguments": {"count": 1.5}}', '{"command": "add", "arguments": {"count": "1"}}',
    '{"command": "add", "arguments": {"count": 0}}', '{"command": "add", "arguments": {"count": -1}}',
    '{"command": "remove"}', '{"command": "remove", "arguments": {"worker": "0"}}', '{"command": "drain"}',
    '{"command": "move", "arguments": {"bins": [0]}}', '{"command": "move", "arguments": {"gap": NaN, "bins": "0"}}',
    '{"command": "move", "arguments": {"map": "0 0", "to": 0}}', '{"command": "move"}',
    '{"command": "checkpoint", "arguments": {"name": "../../x"}}',
    '{"command": "checkpoint", "arguments": {"name": 1}}',
    f'{{"command": "{SCRIPT}"}}', "[" * 5000, '{"a":' * 2000, '{"command": "stop"' + " " * 20000 + "}", "\ud800",
)  # fmt: skip
RAW = (
    "", "\r\n", "\n\n\n\n", "\x00" * 100, "GET", "GET /", "GET / HTTP/1.1\r\n", "GET / HTTP/9.9\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", "GET / HTTP/1.1\nHost: x\n\n",
    "GET / HTTP/1.1\r\nHost : x\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n", "GET / HTTP/1.1\r\nnothing\r\n\r\n",
    "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n",
    "POST /control HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /control HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "POST /control HTTP/1.1\r\n\r\n{}",
    "POST /control HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "GET / HTTP/0.9\r\n\r\n", "GET  /  HTTP/1.1\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "SSH-2.0-x\r\n", "\x05\x01\x00",
    "GET / HTTP/1.1\r\nX: " + "a" * 300_000 + "\r\n\r\n", "GET / HTTP/1.1\r\n" + "X: y\r\n" * 30_000 + "\r\n",
    "GET /" + "a" * 300_000, "GET / HTTP/1.1\r\nHost: evil\r\nX: a\r\n b\r\n\r\n", "GET /\r\nHost: x\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: evil\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "GET / HTTP/1.1\r\n" * 3000,
    "GET / HTTP/1.1\r\nHost: evil\r\nExpect: nonsense\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: evil\r\nRange: bytes=0-" + "1," * 3000,
)  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    """One request."""

    name: str
    data: bytes


def request(path: str, headers: dict[str, str], method: str = "GET", body: str = "") -> bytes:
    content = body.encode("utf-8", "surrogatepass")
    if body:
        headers = {**headers, "Content-Length": str(len(content))}
    lines = [f"{method} {path} HTTP/1.1", "Connection: close", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + content


def requests(port: int, token: str) -> Iterator[Hostile]:
    """Yield all requests for a page on loopback at this port, which has this token and may steer."""
    words = {"port": port, "token": token, "short": token[:-1], "upper": token.upper()}
    host, origin = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"
    command = '{"command": "stop", "arguments": {}}'
    own = {
        "Host": host, "Origin": origin, "X-Megaflow": "1", "Content-Type": "application/json",
        "Cookie": f"megaflow-{port}={token}",
    }  # fmt: skip

    def stop(changed: dict[str, str]) -> bytes:
        return request("/control", {**own, **changed}, "POST", command)

    for each in HOSTS:
        yield Hostile(f"host {each[:40]!r}", request("/events", {"Host": each.format(**words)}))
        yield Hostile(f"command, host {each[:40]!r}", stop({"Host": each.format(**words)}))
    for each in ORIGINS:
        yield Hostile(f"origin {each[:40]!r}", request("/events", {"Host": host, "Origin": each.format(**words)}))
        yield Hostile(f"command, origin {each[:40]!r}", stop({"Origin": each.format(**words)}))
    for each in TOKENS:
        value = each.format(**words)
        yield Hostile(f"cookie {each!r}", stop({"Cookie": f"megaflow-{port}={value}"}))
        yield Hostile(f"bearer {each!r}", request("/metrics", {"Host": host, "Authorization": f"Bearer {value}x"}))
        yield Hostile(f"link {each!r}", request(f"/?token={value.replace(' ', '+')}x", {"Host": host}))
    for name in ("Origin", "X-Megaflow", "Cookie", "Content-Type", "Host"):
        left = {key: value for key, value in own.items() if key != name}
        yield Hostile(f"command without {name}", request("/control", left, "POST", command))
    for site in ("cross-site", "same-site", SCRIPT):
        yield Hostile(f"site {site}", request("/events", {"Host": host, "Sec-Fetch-Site": site}))
        yield Hostile(f"command, site {site}", stop({"Sec-Fetch-Site": site}))
    for each in PATHS:
        yield Hostile(f"path {each[:40]!r}", request(each, {"Host": host}))
    for each in METHODS:
        yield Hostile(f"method {each[:40]!r}", request("/", {"Host": host}, each))
        yield Hostile(f"events by {each[:40]!r}", request("/events", {"Host": host}, each))
    for each in COMMANDS:
        yield Hostile(f"command {each[:60]!r}", request("/control", own, "POST", each))
    for number, each in enumerate(RAW):
        yield Hostile(f"bytes {number} {each[:40]!r}", each.encode("latin-1"))

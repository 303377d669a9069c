"""Hostile visitors get nothing, and the page goes on for all others."""

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.run.live_page import check_command
from megaflow.web import hub
from megaflow.web.server import REQUEST_BYTES, Limits
from tests.web.hostile import REFUSED, SCRIPT, Hostile, requests
from tests.web.serving import SECONDS, TOKEN, Page, parsed, read_all, served, status

QUICK = Limits(connections=8, idle_seconds=0.5, slow_seconds=0.5)


def steer(command: str, given: dict[str, object]) -> object:
    """Check a command as a job does; none of the hostile ones may pass."""
    check_command(command, given)
    if command != "checkpoint" and not (command == "add" and given["count"] in (0, -1)) and command != "move":
        raise AssertionError(f"{command} {given} was carried out")
    raise UsageError("the job refuses")


@pytest.fixture
def page() -> Iterator[Page]:
    with served(may_steer=True, steer=steer, limits=Limits(idle_seconds=1.0)) as page:
        yield page


def test_hostile_requests_get_nothing_and_harm_nothing(page: Page, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    table = list(requests(page.port, TOKEN))
    assert len(table) >= 200 and len({each.name for each in table}) == len(table)
    with page.viewer() as viewer, ThreadPoolExecutor(3) as visitors:
        viewer.next()
        statuses = visitors.map(lambda each: parsed(page.raw(each.data)).status, table)
        given = [(each.name, status) for each, status in zip(table, statuses) if status not in REFUSED]
        page.news.coming.put(status("unharmed"))
        viewer.state("unharmed")
    assert given == []
    assert page.request().status == page.request("/metrics").status == 200
    assert caplog.messages == []


def test_many_visitors_that_send_nothing_do_not_keep_others_out() -> None:
    with served(limits=Limits(connections=8, idle_seconds=600)) as page, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(page.connect()) for _ in range(40)]
        assert page.request("/livez").status == 200
        silent[0].settimeout(SECONDS)
        assert read_all(silent[0]) == b""
        with page.viewer() as viewer:
            assert viewer.next() is not None


def test_visitors_cannot_push_a_viewer_out() -> None:
    with served(limits=Limits(connections=4, idle_seconds=600)) as page, contextlib.ExitStack() as stack:
        viewer = stack.enter_context(page.viewer())
        viewer.next()
        for _ in range(20):
            stack.enter_context(page.connect())
        page.news.coming.put(status("still there"))
        viewer.state("still there")


def test_if_all_connections_are_viewers_a_further_one_is_refused() -> None:
    with served(limits=Limits(connections=2)) as page, page.viewer() as one, page.viewer() as other:
        assert one.next() is not None and other.next() is not None
        assert page.request("/livez").status == 0
        page.news.coming.put(status("served"))
        one.state("served"), other.state("served")


@pytest.mark.parametrize("part", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y"])
def test_a_half_open_connection_is_closed_after_a_while(part: bytes) -> None:
    with served(limits=QUICK) as page, page.connect() as connection:
        connection.sendall(part)
        assert read_all(connection) == b""


def test_a_body_that_does_not_come_is_not_awaited_forever() -> None:
    with served(may_steer=True, limits=QUICK) as page:
        lines = [
            "POST /control HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}",
            "Content-Type: application/json", "Content-Length: 100", "", "{",
        ]  # fmt: skip
        data = "\r\n".join(lines)
        assert parsed(page.raw(data.encode())).status == 408


def test_a_viewer_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job is no longer watched then."""
    monkeypatch.setattr(hub, "IDLE_SECONDS", 0.1)
    with served(limits=QUICK, padding=3_000_000) as page, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(SECONDS)
        slow.connect(("127.0.0.1", page.port))
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert page.news.idle.acquire(timeout=SECONDS)


HEAD = b"HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("endless", [b"x", b"X: y\r\n"], ids=["header", "headers"])
def test_a_request_that_never_ends_is_cut_off(page: Page, endless: bytes) -> None:
    data = page.raw(b"GET / " + HEAD + b"X: " + endless * (2 * REQUEST_BYTES // len(endless)))
    assert parsed(data).status in (0, 400)
    assert page.request("/livez").status == 200


def test_requests_behind_one_that_never_ends_are_not_all_read(page: Page) -> None:
    """The server ends the connection or reads no further. No outcome depends on how its chunks arrive."""
    requests = (b"GET /livez " + HEAD + b"\r\n") * 1000
    with page.connect() as connection:
        connection.sendall(b"GET /events " + HEAD + b"\r\n")
        assert parsed(connection.recv(4096)).status == 200
        connection.settimeout(3.0)
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(1000):
                connection.sendall(requests)
    assert page.request("/livez").status == 200


def test_visitors_that_leave_at_once_leave_nothing_behind(page: Page) -> None:
    before = threading.active_count()
    for number in range(100):
        with page.connect() as connection:
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"[: number % 45])
    with page.viewer() as viewer:
        assert viewer.next() is not None
    assert threading.active_count() <= before + 3


@pytest.mark.parametrize("path", ["/", "/events", "/static/index.html", "/metrics", "/control", "/nothing", "/livez"])
def test_every_answer_has_the_headers_that_protect_the_page(page: Page, path: str) -> None:
    if path == "/events":
        with page.connect() as connection:
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            headers = parsed(connection.recv(4096)).headers
    else:
        headers = page.request(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer" and headers["server"] == "megaflow"
    assert "access-control-allow-origin" not in headers


def test_an_answer_never_repeats_the_request(page: Page) -> None:
    answers = [
        page.request(f"/{SCRIPT}"), page.request("/", "GET", {"Host": SCRIPT}),
        page.request(f"/?token={SCRIPT}"), page.request("/", "GET", {"Origin": SCRIPT}),
    ]  # fmt: skip
    assert [each.body for each in answers if SCRIPT in each.body] == []


def test_the_table_names_every_kind_of_attack() -> None:
    kinds = {each.name.split()[0] for each in requests(1, TOKEN)}
    assert kinds == {"host", "origin", "cookie", "bearer", "link", "site", "path", "method", "events", "command,",
                     "command", "bytes"}  # fmt: skip
    assert isinstance(next(requests(1, TOKEN)), Hostile)

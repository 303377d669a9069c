"""The port of the page: its paths, the token, commands, probes, and its end."""

import contextlib
import json
import mimetypes
import socket
import threading
import weakref
from pathlib import Path

import pytest

from megaflow.errors import CommandRefused, UsageError
from megaflow.web.server import COMMANDS_MAX, STATIC, parse_command, read_files
from tests.cluster.processes import wait_until
from tests.uncollected import uncollected
from tests.web.serving import SECONDS, TOKEN, served


def test_the_page_and_its_files_are_served() -> None:
    with served() as page:
        index = page.request()
        assert index.status == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
        assert page.request("/static/index.html").body == index.body
        assert page.request("/", "HEAD").status == 200


def test_all_files_of_the_page_are_known_by_their_path() -> None:
    files = read_files(STATIC)
    assert set(files) == {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert {kind for name, (_, kind) in files.items() if name.endswith(".js")} == {"text/javascript; charset=utf-8"}


def test_types_do_not_depend_on_the_tables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    mimetypes.init()  # now `types_map` is the table in use, which a program may change
    for suffix in (".js", ".css", ".html", ".svg"):
        monkeypatch.setitem(mimetypes.types_map, suffix, "text/plain")
    assert mimetypes.guess_type("main.js") == ("text/plain", None)
    types = {Path(name).suffix: kind for name, (_, kind) in read_files(STATIC).items()}
    assert types[".js"] == "text/javascript; charset=utf-8" and "text/plain" not in "".join(types.values())


def test_a_folder_is_read_with_the_types_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.css").write_text("x")
    (tmp_path / "b").write_bytes(b"y")
    assert read_files(tmp_path) == {
        "inner/a.css": (b"x", "text/css; charset=utf-8"), "b": (b"y", "application/octet-stream"),
    }  # fmt: skip


def test_a_port_for_metrics_has_no_page() -> None:
    with served(has_page=False) as page:
        for path, expected in {"/": 404, "/events": 404, "/control": 404, "/metrics": 200, "/readyz": 200}.items():
            assert page.request(path).status == expected


def test_a_page_beyond_loopback_needs_the_token_for_everything_but_probes() -> None:
    with served(bound="0.0.0.0") as page:
        for path in ("/", "/events", "/static/index.html", "/metrics", "/control", "/nothing"):
            assert page.request(path).status == 401
            assert page.request(path, headers={"Authorization": "Bearer wrong-wrong-wrong"}).status == 401
        assert page.request("/livez").status == page.request("/readyz").status == 200
        assert page.request("/metrics", headers={"Authorization": f"Bearer {TOKEN}", "Host": "any.name"}).status == 200


def test_a_link_is_exchanged_for_a_cookie_that_scripts_cannot_read() -> None:
    with served(bound="0.0.0.0") as page:
        answer = page.request(f"/?token={TOKEN}")
        cookie = answer.headers["set-cookie"]
        assert answer.status == 200 and TOKEN not in answer.body
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert page.request("/", headers={"Cookie": cookie.split(";")[0]}).status == 200
        assert 'url=./"' in answer.body and 'href="/"' not in answer.body  # also below the path of a proxy
        assert page.request("/?token=wrong").status == 401
        assert "set-cookie" not in page.request("/?token=wrong").headers


def test_readiness_is_the_job_s_and_liveness_the_server_s() -> None:
    with served() as page:
        page.waits.append("restart 1 of 3")
        assert (page.request("/readyz").status, page.request("/livez").status) == (503, 200)
        assert page.request("/readyz").body == "restart 1 of 3\n"
        page.waits.append("")
        assert page.request("/readyz").status == 200
        assert page.news.watched == 0


def test_a_command_is_carried_out_and_answered() -> None:
    done = []

    def steer(command: str, given: dict[str, object]) -> object:
        done.append((command, given))
        return {"bins": 3}

    with served(may_steer=True, steer=steer) as page:
        assert page.command("drain", worker=1) == (200, {"result": {"bins": 3}})
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Host": "elsewhere"}
        assert page.request("/control", "POST", headers, b'{"command": "stop"}').status == 200
    assert done == [("drain", {"worker": 1}), ("stop", {})]


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("no <such> bin"), 400), (CommandRefused("not <now>"), 409)]
)
def test_a_refused_command_is_answered_with_the_reason(error: Exception, status: int) -> None:
    def steer(command: str, given: dict[str, object]) -> object:
        raise error

    with served(may_steer=True, steer=steer) as page:
        assert page.command("stop") == (status, {"error": str(error)})


def test_a_refused_command_leaves_nothing_behind() -> None:
    asked: list[weakref.ref[set[int]]] = []

    def steer(command: str, given: dict[str, object]) -> object:
        status = {1}  # of a job with many moves, say
        asked.append(weakref.ref(status))
        raise CommandRefused("another plan is under way") from CommandRefused(command)

    with uncollected(), served(may_steer=True, steer=steer) as page:
        for _ in range(3):
            assert page.command("stop")[0] == 409
            wait_until(lambda: all(each() is None for each in asked))  # soon: the server's frames end


def test_a_page_says_whether_it_may_steer() -> None:
    for may_steer, cookie, expected in ((True, TOKEN, True), (True, "wrong", False), (False, TOKEN, False)):
        with served(may_steer=may_steer, steer=lambda command, given: {}) as page:
            answer = page.request("/control", headers={"Cookie": f"{page.cookie_name}={cookie}"})
            assert json.loads(answer.body) == {"steers": expected}


def test_a_read_only_page_carries_out_no_command() -> None:
    with served(steer=lambda command, given: pytest.fail("it was carried out")) as page:
        assert page.steer(b'{"command": "stop"}').status == 403


def test_a_stop_gets_through_while_a_move_lasts_and_too_many_commands_do_not() -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def steer(command: str, given: dict[str, object]) -> object:
        begun.release()
        if command == "move":
            end.wait(SECONDS)
        return {}

    with served(may_steer=True, steer=steer) as page, contextlib.ExitStack() as stack:
        moves = [threading.Thread(target=page.command, args=("move",)) for _ in range(COMMANDS_MAX - 1)]
        stack.callback(lambda: [move.join(SECONDS) for move in moves])
        stack.callback(end.set)
        for move in moves:
            move.start()
            assert begun.acquire(timeout=SECONDS)
        assert page.command("stop")[0] == 200
        moves.append(threading.Thread(target=page.command, args=("move",)))
        moves[-1].start()
        assert begun.acquire(timeout=SECONDS) and begun.acquire(timeout=SECONDS)
        assert page.command("stop")[0] == 503


def test_a_command_under_way_does_not_keep_the_server_from_ending() -> None:
    begun, end = threading.Event(), threading.Event()

    def steer(command: str, given: dict[str, object]) -> object:
        begun.set()
        end.wait(SECONDS)
        return {}

    with served(may_steer=True, steer=steer) as page:
        asking = threading.Thread(target=page.steer, args=(b'{"command": "stop"}',))
        asking.start()
        assert begun.wait(SECONDS)
    end.set()
    asking.join(SECONDS)
    assert not asking.is_alive()


def test_after_its_end_the_port_is_free() -> None:
    with served() as page:
        assert page.request("/livez").status == 200
    socket.create_server(("127.0.0.1", page.port)).close()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"command": 3}', b'{"command": "stop", "and": 1}', b"{" * 9999])
def test_what_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match="A command is"):
        parse_command("application/json", body)
    with pytest.raises(UsageError, match="A command is"):
        parse_command("text/plain", b'{"command": "stop"}')

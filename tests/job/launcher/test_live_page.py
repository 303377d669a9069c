"""The ports of a job's page, and the commands that it may give."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from megaflow.control import messages
from megaflow.control.reports import CheckpointStatus
from megaflow.errors import PeerFailed, UsageError
from megaflow.job.launcher.run.live_page import (
    COMMANDS,
    LivePage,
    check_command,
    end_text,
    open_door,
    steer,
)

TOKEN = "a-token-of-the-tests"


def test_a_door_is_an_open_port_of_loopback_unless_the_user_says_otherwise() -> None:
    door, host = open_door("0", "--web", TOKEN, may_steer=True, has_page=True)
    with door.listener:
        assert door.listener.getsockname() == ("127.0.0.1", door.access.port)
        assert (host, door.access.is_local, door.access.may_steer, door.has_page) == ("127.0.0.1", True, True, True)


def test_a_door_on_all_addresses_is_reached_by_one_of_them() -> None:
    door, host = open_door("0.0.0.0:0", "--web", TOKEN, may_steer=False, has_page=True)
    with door.listener:
        assert host != "0.0.0.0" and not door.access.is_local
        assert f"?token={TOKEN}" in door.access.link(host)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv4 and IPv6 on one socket")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_door_on_all_ipv6_addresses_is_reached_by_ipv4(host: str) -> None:
    door, _ = open_door("[::]:0", "--web", TOKEN, may_steer=False, has_page=True)
    with door.listener, socket.create_connection((host, door.access.port)):
        pass


def test_an_address_of_another_machine_is_named_with_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"--web 192\.0\.2\.77:0: .*an address of this machine"):
        open_door("192.0.2.77:0", "--web", TOKEN, may_steer=False, has_page=True)


def test_a_taken_port_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--metrics {port}: .*0 for any free one") as raised:
            open_door(str(port), "--metrics", TOKEN, may_steer=False, has_page=False)
    assert isinstance(raised.value.__cause__, OSError) and raised.value.__cause__.errno == errno.EADDRINUSE


def test_a_page_closes_its_ports_if_one_of_them_cannot_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = LivePage("0", str(taken.getsockname()[1]))
        with pytest.raises(UsageError, match="--metrics"):
            page.__enter__()
        assert page.url is not None
        port = int(page.url.split(":")[2].rstrip("/"))
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("page", "given", "expected"),
    [
        (LivePage("0", may_steer=True), None, "?token="),
        (LivePage("0", may_steer=True), TOKEN, "?token=$MEGAFLOW_WEB_TOKEN"),
        (LivePage(metrics="0.0.0.0:0"), TOKEN, "; their token is MEGAFLOW_WEB_TOKEN"),
        (LivePage(metrics="0.0.0.0:0"), None, "; their token is "),
    ],
)
def test_a_token_that_the_user_has_set_is_not_printed(
    page: LivePage, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("MEGAFLOW_WEB_TOKEN", raising=False)
    else:
        monkeypatch.setenv("MEGAFLOW_WEB_TOKEN", given)
    with page:
        (text,) = page.addresses()
        assert expected in text and TOKEN not in text
        assert given is None or page.address is None or (page.url or "").endswith(f"?token={TOKEN}")


def test_viewers_learn_how_the_job_has_ended() -> None:
    assert end_text(None) == "The job has ended."
    assert end_text(PeerFailed("KeyError: 'x'")) == "The job has failed: KeyError: 'x'"
    assert end_text(KeyboardInterrupt()) == "The job was interrupted."
    assert len(end_text(ValueError("x" * 100_000))) <= 4000


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("move", {"bins": "0-3", "to": 1}), ("move", {"balance": True, "by": "load", "gap": 0.5, "strategy": "fluid"}),
        ("drain", {"worker": 0, "strategy": "batched", "batch": 4}), ("add", {}),
        ("add", {"count": 2, "balance": True}),
        ("remove", {"worker": 1}), ("checkpoint", {}), ("checkpoint", {"name": "nightly"}), ("stop", {"drain": False}),
        ("resume", {"gap": 1}),
    ],
)  # fmt: skip
def test_commands_of_the_page_are_known(command: str, given: dict[str, Any]) -> None:
    check_command(command, given)


@pytest.mark.parametrize(
    ("command", "given", "reason"),
    [
        ("exit", {}, "no command 'exit'"), ("", {}, "no command ''"), ("x" * 999, {}, "no command 'x"),
        ("add", {"count": True}, "'count' cannot be True"), ("add", {"count": 1.0}, "'count' cannot be 1.0"),
        ("add", {"self": 1}, "no argument 'self'"), ("drain", {}, "'worker' is missing"),
        ("remove", {}, "'worker' is missing"), ("stop", {"drain": None}, "'drain' cannot be None"),
        ("move", {"bins": ["0"]}, "'bins' cannot be"), ("checkpoint", {"name": {}}, "'name' cannot be"),
    ],
)  # fmt: skip
def test_other_commands_are_refused_before_the_job_is_asked(command: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as raised:
        steer(lambda: pytest.fail("the job was asked"), pytest.fail, command, given)
    assert len(str(raised.value)) < 250


class Paper:
    """A conversation that answers each question from a table, and notes it."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.accepted = None

    def ask(self, body: object, *more: object) -> object:
        self.asked.append(body)
        return CheckpointStatus(7) if isinstance(body, messages.CheckpointJob) else None


def test_a_command_asks_the_job_and_reports_in_json_values() -> None:
    paper = Paper()

    @contextmanager
    def talk() -> Iterator[Any]:
        yield paper

    def end(**given: bool) -> None:
        paper.asked.append(given)

    assert steer(talk, end, "checkpoint", {"name": "nightly"})["number"] == 7
    assert steer(talk, end, "stop", {"drain": False}) == {}
    assert paper.asked == [messages.CheckpointJob("nightly"), {"drain": False}]


def test_each_command_takes_arguments_of_job_control() -> None:
    assert set(COMMANDS) == {"move", "drain", "resume", "add", "remove", "checkpoint", "stop"}

"""Where a process listens, so that processes of other machines can reach it."""

import socket

import pytest

from megaflow.errors import UsageError
from megaflow.job import reachable
from megaflow.job.reachable import check_listening, ends_of_way, trouble_of
from megaflow.timely.communication.address import address_text
from tests.words import says

CONTACT = "10.0.0.1", 7000


def test_both_ends_of_a_way_within_this_machine_are_its_own() -> None:
    assert ends_of_way(("127.0.0.1", 9)) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("near, there", [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")])
def test_a_process_of_the_same_machine_may_listen_there_alone(
    monkeypatch: pytest.MonkeyPatch, near: str, there: str
) -> None:
    monkeypatch.setattr(reachable, "ends_of_way", lambda place: (near, there))
    check_listening("127.0.0.1", ("127.0.0.1", 4711), CONTACT)


def test_a_process_of_another_machine_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "ends_of_way", lambda place: ("10.0.0.2", "10.0.0.1"))
    for listen in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(UsageError, match=rf"--listen {listen}: the job at 10.0.0.1:7000 .* as --listen 10.0.0.2"):
            check_listening(listen, ("127.0.0.1", 4711), CONTACT)
    check_listening("10.0.0.2", ("10.0.0.2", 4711), CONTACT)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_address_where_a_process_listens_is_reached(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        place = listener.getsockname()[:2]
        assert trouble_of(place) == ""
    wanted = socket.gethostname(), address_text(place), "Connection refused", "--listen HOST:PORT"
    assert says(trouble_of(place), *wanted)


@pytest.mark.parametrize("place", [("127.0.0.1", 1 << 16), ("a" * 64, 7000), ("", 0), ("nowhere.invalid", 7000)])
def test_what_is_no_address_is_not_reached(place: tuple[str, int]) -> None:
    assert says(trouble_of(place), "cannot connect", place[0])

"""Where a process listens, so that processes of other machines can reach it."""

import pytest

from megaflow.errors import UsageError
from megaflow.job import reachable
from megaflow.job.reachable import check_listening, ends_of_way

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

"""A commit proceeds if all workers that it names hold its lines. If one does not, it is refused."""

import pytest

from megaflow.control.coordinator.base.events import Asked
from megaflow.control.coordinator.reading.spark_commits import WAITING_MAX
from megaflow.control.coordinator.reading.staged_checks import StagedChecks
from megaflow.control.messages import CommitBatch, CommitRequest, Request
from megaflow.control.staging_messages import StagedAnswer, StagedAsk
from megaflow.errors import CommandRefused

COMMIT = CommitBatch("q", "r", 0, {0: (1, 7, 10), 1: (3, 8, 5), 2: (3, 9, 0), 3: (9, 1, 1)})


def asked(client: str, commit: CommitBatch = COMMIT) -> Asked:
    return Asked(client, Request(1, CommitRequest(commit)))


def test_the_members_that_a_commit_names_are_asked_and_all_are_waited_for() -> None:
    checks, one = StagedChecks(0), asked("spark")
    assert checks.begin(one, COMMIT, {0, 1, 3}) == [(worker, StagedAsk(0, 0, COMMIT)) for worker in (1, 3)]
    assert checks.answered(3, StagedAnswer(0, 0, None)) is None and checks.asked == [one]
    assert checks.answered(1, StagedAnswer(0, 0, None)) == (one, None) and checks.asked == []
    assert checks.answered(1, StagedAnswer(0, 0, None)) is None, "nobody asks any more"


def test_what_one_worker_lacks_is_told_when_all_have_answered() -> None:
    checks, one = StagedChecks(0), asked("spark")
    checks.begin(one, COMMIT, {1, 3})
    assert checks.answered(1, StagedAnswer(0, 0, "none here")) is None
    assert checks.answered(3, StagedAnswer(0, 0, None)) == (one, "none here")


def test_a_commit_that_names_no_member_needs_no_answer() -> None:
    checks = StagedChecks(0)
    assert checks.begin(asked("spark"), COMMIT, {0, 2}) == [] and checks.asked == []


def test_the_answer_to_another_coordinator_is_dropped() -> None:
    checks, one = StagedChecks(3), asked("spark")
    checks.begin(one, COMMIT, {1})
    assert checks.answered(1, StagedAnswer(0, 0, "none here")) is None
    assert checks.answered(1, StagedAnswer(3, 0, None)) == (one, None)


def test_nobody_waits_for_a_worker_that_has_left_nor_for_a_client_that_has() -> None:
    checks, one, other = StagedChecks(0), asked("spark"), asked("another")
    checks.begin(one, COMMIT, {1, 3})
    checks.begin(other, COMMIT, {3})
    checks.gone("another")
    assert checks.left((1,)) == [] and checks.left((3,)) == [(one, None)] and checks.asked == []


def test_so_many_are_checked_at_a_time_and_no_more() -> None:
    checks = StagedChecks(0)
    for _ in range(WAITING_MAX):
        checks.begin(asked("spark"), COMMIT, {1})
    with pytest.raises(CommandRefused, match="try again later"):
        checks.begin(asked("spark"), COMMIT, {1})

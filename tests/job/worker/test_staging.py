"""Staged lines are taken once, in order, only after their commit, whatever else is staged."""

import threading
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from megaflow.control.messages import CommitBatch, CommitTaken, Refused
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import ProtocolError
from megaflow.job.worker.reading.staging import Staging
from megaflow.spark.push import join_lines
from tests.examples import many
from tests.words import says

WORKER = 4
TEXTS = st.lists(st.text(max_size=30) | st.text("a\n\0", max_size=4))  # including separators


def stage(
    staging: Staging, attempt: int, lines: list[str], *, partition: int = 0, batch: int = 0, run: str = "r"
) -> Staged | Refused:
    """Send a whole attempt, line by line, over a connection of its own; return the answer."""
    for line in lines:
        stage = StageLines("q", run, batch, partition, attempt, WORKER, *join_lines([line]))
        staging.stage(stage, f"connection {attempt}")
    end = StageEnd("q", run, batch, partition, attempt, WORKER, len(lines))
    return staging.end(end, f"connection {attempt}")


def commit(winners: dict[int, tuple[int, int, int]], batch: int = 0, run: str = "r") -> CommitBatch:
    return CommitBatch("q", run, batch, winners)


def test_lines_are_taken_after_their_commit_and_not_before() -> None:
    staging = Staging(WORKER)
    assert stage(staging, 7, ["a", "b"]) == Staged(7, 2)
    assert staging.take(100) == []
    staging.commit(commit({0: (WORKER, 7, 2)}))
    assert staging.pending_lines == 2
    assert staging.take(100) == ["a", "b"]
    assert staging.pending_lines == 0


def test_a_commit_takes_the_named_attempt_of_each_partition_and_discards_the_others() -> None:
    staging = Staging(WORKER)
    stage(staging, 1, ["second"], partition=1)
    stage(staging, 2, ["lost race"], partition=0)
    stage(staging, 3, ["first"], partition=0)
    stage(staging, 4, ["of another run"], partition=0, run="older")
    stage(staging, 5, ["next batch"], batch=1)
    staging.commit(commit({1: (WORKER, 1, 1), 0: (WORKER, 3, 1), 2: (9, 6, 1)}))
    assert staging.take(1000) == ["first", "second"]
    staging._check()
    staging.commit(commit({0: (WORKER, 5, 1)}, batch=1))
    assert staging.take(1000) == ["next batch"]
    assert staging.held_bytes == 0


def test_a_replayed_batch_is_acknowledged_and_dropped() -> None:
    staging = Staging(WORKER)
    stage(staging, 1, ["once"], run="first")
    staging.commit(commit({0: (WORKER, 1, 1)}, run="first"))
    assert stage(staging, 2, ["once"], run="replay") == Staged(2, 1)
    assert staging.held_bytes > 0, "the first one is still there to be taken"
    staging.commit(commit({0: (WORKER, 2, 1)}, run="replay"))
    staging.commit(commit({0: (WORKER, 1, 1)}, run="first"))
    assert staging.take(1000) == ["once"]
    assert staging.take(1000) == []
    assert staging.take_finished() == [CommitTaken("q", 0)]
    assert staging.take_finished() == []
    assert staging.held_bytes == 0


def test_an_attempt_whose_connection_is_lost_before_its_end_is_discarded() -> None:
    staging = Staging(WORKER)
    stage(staging, 1, ["whole"])
    staging.stage(StageLines("q", "r", 0, 0, 2, WORKER, 1, "half"), "dying")
    held_bytes = staging.held_bytes
    staging.lost("dying")
    assert staging.held_bytes < held_bytes
    staging.lost("connection 1")
    staging.commit(commit({0: (WORKER, 1, 1)}))
    assert staging.take(1000) == ["whole"]
    assert staging.held_bytes == 0


def test_an_attempt_still_open_when_its_batch_is_committed_ends_in_peace_and_is_dropped() -> None:
    staging = Staging(WORKER)
    staging.stage(StageLines("q", "r", 0, 0, 2, WORKER, 1, "slow"), "slow")
    stage(staging, 1, ["quick"])
    staging.commit(commit({0: (WORKER, 1, 1)}))
    staging.stage(StageLines("q", "r", 0, 0, 2, WORKER, 1, "slower"), "slow")
    staging._check()
    assert staging.end(StageEnd("q", "r", 0, 0, 2, WORKER, 2), "slow") == Staged(2, 2)
    assert staging.take(1000) == ["quick"]


def test_a_wrong_count_is_refused_and_its_lines_discarded() -> None:
    staging = Staging(WORKER)
    staging.stage(StageLines("q", "r", 0, 0, 1, WORKER, 1, "a"), "c")
    answer = staging.end(StageEnd("q", "r", 0, 0, 1, WORKER, 2), "c")
    assert isinstance(answer, Refused) and says(answer.reason, "attempt 1", "2 lines", "worker 4", "1 arrived")
    assert staging.held_bytes == 0


def test_a_commit_of_lines_that_are_not_there_changes_nothing() -> None:
    staging = Staging(WORKER)
    stage(staging, 1, ["a"])
    staging.stage(StageLines("q", "r", 0, 1, 2, WORKER, 1, "open"), "c")
    for winners in ({0: (WORKER, 1, 2)}, {0: (WORKER, 1, 1), 1: (WORKER, 2, 1)}, {0: (WORKER, 9, 1)}):
        with pytest.raises(ProtocolError, match=r"worker 4 had to commit \d lines of attempt \d .*batch 0"):
            staging.commit(commit(winners))
        staging._check()
    staging.commit(commit({0: (WORKER, 1, 1)}))
    assert staging.take(1000) == ["a"]


@pytest.mark.parametrize(
    "message",
    [
        StageLines("q", "r", 0, 0, 1, WORKER + 1, 1, "a"),
        StageLines("q", "r", 0, 0, 1, WORKER, 1, b"a"),  # type: ignore[arg-type]
        StageLines("q", "r", 0, 0, 1, WORKER, 1, "a", 5),  # type: ignore[arg-type]
        StageLines("q", "r", 0, 0, 1, WORKER, 1, "a", ""),
        StageLines("q", "r", 0, 0, 1, WORKER, 2, "aaa", "aa"),
        StageLines("q", "r", 0, 0, 1, WORKER, 2, "a"),
        StageLines("q", "r", 0, 0, 1, WORKER, 0, ""),
        StageLines("q", "r", 0, 0, 1, WORKER, True, "a"),
        StageLines(["q"], "r", 0, 0, 1, WORKER, 1, "a"),  # type: ignore[arg-type]
        StageLines("q", "r", 0, 0, True, WORKER, 1, "a"),
    ],
)
def test_a_message_that_no_executor_sends_is_a_protocol_error(message: StageLines) -> None:
    staging = Staging(WORKER)
    with pytest.raises(ProtocolError, match="Worker 4 received"):
        staging.stage(message, "c")
    assert staging.held_bytes == 0


def test_one_attempt_comes_over_one_connection() -> None:
    staging = Staging(WORKER)
    staging.stage(StageLines("q", "r", 0, 0, 1, WORKER, 1, "a"), "c")
    with pytest.raises(ProtocolError, match="twice"):
        staging.stage(StageLines("q", "r", 0, 0, 1, WORKER, 1, "a"), "another")


def test_lines_beyond_the_limit_wait_in_a_file_and_keep_their_order(tmp_path: Path) -> None:
    lines = [f"line {i}, ünïcode, \u2028 and \ud83d\ude00" for i in range(500)]
    staging = Staging(WORKER, limit_bytes=2000, folder=str(tmp_path))
    stage(staging, 1, lines[:300])
    stage(staging, 2, lines[300:], partition=1)
    staging._check()
    assert 0 < staging.held_bytes <= 2000
    staging.commit(commit({0: (WORKER, 1, 300), 1: (WORKER, 2, 200)}))
    taken: list[str] = []
    while some := staging.take(300):
        taken += some
        staging._check()
    assert taken == lines
    assert staging.held_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_take_is_bounded_and_gives_at_least_one_line() -> None:
    staging = Staging(WORKER)
    staging.stage(StageLines("q", "r", 0, 0, 1, WORKER, 5, f"{'x' * 50}\nyyyy\nzzzz\n\n"), "connection 1")
    assert staging.end(StageEnd("q", "r", 0, 0, 1, WORKER, 5), "connection 1") == Staged(1, 5)
    staging.commit(commit({0: (WORKER, 1, 5)}))
    assert [staging.take(10) for _ in range(4)] == [["x" * 50], ["y" * 4, "z" * 4], ["", ""], []]


@pytest.mark.parametrize("odd", ["", "two\nlines", "two\nlines and nul\0", "\x000\n \0 \n"])
@pytest.mark.parametrize("limit_bytes", [0, 10_000])
def test_a_message_is_taken_piece_by_piece_whatever_separates_its_lines(odd: str, limit_bytes: int) -> None:
    lines = ["", *(f"{i} ünï {odd}" for i in range(20)), odd, "", ""]
    staging = Staging(WORKER, limit_bytes)
    staging.stage(StageLines("q", "r", 0, 0, 1, WORKER, *join_lines(lines)), "connection 1")
    assert staging.end(StageEnd("q", "r", 0, 0, 1, WORKER, len(lines)), "connection 1") == Staged(1, len(lines))
    staging.commit(commit({0: (WORKER, 1, len(lines))}))
    taken: list[str] = []
    while some := staging.take(limit_bytes=1 + 7 * (len(taken) % 5)):
        taken += some
        staging._check()
        assert staging.pending_lines == len(lines) - len(taken)
    assert taken == lines


def test_a_batch_is_finished_when_its_last_line_is_taken() -> None:
    staging = Staging(WORKER)
    stage(staging, 1, ["a", "b"])
    stage(staging, 2, ["c"], partition=1)
    stage(staging, 3, [], batch=1)
    staging.commit(commit({0: (WORKER, 1, 2), 1: (WORKER, 2, 1)}))
    staging.commit(commit({0: (WORKER, 3, 0)}, batch=1))
    staging.commit(commit({0: (WORKER + 1, 4, 9)}, batch=2))
    assert staging.take(3) == ["a", "b"]
    assert staging.take_finished() == []
    assert staging.take(1) == ["c"]
    assert staging.take_finished() == [CommitTaken("q", 0), CommitTaken("q", 1)]


def test_closing_gives_everything_back(tmp_path: Path) -> None:
    staging = Staging(WORKER, limit_bytes=100, folder=str(tmp_path))
    stage(staging, 1, ["a" * 30, "b" * 30])
    staging.commit(commit({0: (WORKER, 1, 2)}))
    stage(staging, 2, ["c" * 30], batch=1)
    staging.close()
    staging._check()
    assert (staging.held_bytes, staging.pending_lines, staging.take(10)) == (0, 0, [])


def test_tasks_that_stage_while_the_source_closes_end_in_peace_and_leave_nothing(tmp_path: Path) -> None:
    staging = Staging(WORKER, limit_bytes=100, folder=str(tmp_path))
    first = StageLines("q", "r", 0, 0, 1, WORKER, *join_lines(["some", "lines"]))
    staging.stage(first, "connection 1")
    stage(staging, 2, ["whole"])
    staging.close()
    staging.stage(first, "connection 1")
    assert staging.end(StageEnd("q", "r", 0, 0, 1, WORKER, 4), "connection 1") == Staged(1, 4)
    staging.stage(replace(first, attempt=3), "connection 3")
    staging.close()
    assert staging.end(StageEnd("q", "r", 0, 0, 3, WORKER, 2), "connection 3") == Staged(3, 2)
    assert stage(staging, 4, ["after"]) == Staged(4, 1)
    staging._check()
    assert staging.held_bytes == 0


def test_one_thread_stages_while_another_takes() -> None:
    staging = Staging(WORKER, limit_bytes=5000)
    commits: deque[CommitBatch] = deque()

    def fill() -> None:
        for batch in range(200):
            stage(staging, 2 * batch, ["lost"], batch=batch)
            stage(staging, 2 * batch + 1, [f"{batch}.{i}" for i in range(50)], batch=batch)
            commits.append(commit({0: (WORKER, 2 * batch + 1, 50)}, batch=batch))

    filler = threading.Thread(target=fill)
    filler.start()
    taken, finished = [], []
    while filler.is_alive() or commits or staging.pending_lines:
        if commits:
            staging.commit(commits.popleft())
        taken += staging.take(100)
        finished += staging.take_finished()
    filler.join()
    assert taken == [f"{batch}.{i}" for batch in range(200) for i in range(50)]
    assert finished == [CommitTaken("q", batch) for batch in range(200)]
    staging._check()


class AgainstAModel(RuleBasedStateMachine):
    """Random conversations. The model keeps whole attempts in a dict and committed lines in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.staging = Staging(WORKER, limit_bytes=500)
        self.attempt = 0
        self.whole: dict[int, dict[int, tuple[int, list[str]]]] = {}  # batch -> partition -> newest whole attempt
        self.due: list[str] = []
        self.next_batch = 0
        self.finished: list[CommitTaken] = []
        self.named: list[CommitTaken] = []

    @rule(batch=st.integers(0, 3), partition=st.integers(0, 2), lines=TEXTS, dies=st.booleans())
    def an_attempt(self, batch: int, partition: int, lines: list[str], dies: bool) -> None:
        self.attempt += 1
        batch += max(0, self.next_batch - 2)  # some are late
        name = ("q", "r", batch, partition, self.attempt, WORKER)
        for at in range(0, len(lines), 3):
            self.staging.stage(StageLines(*name, *join_lines(lines[at : at + 3])), self.attempt)
        if not dies:
            assert self.staging.end(StageEnd(*name, len(lines)), self.attempt) == Staged(self.attempt, len(lines))
            self.whole.setdefault(batch, {})[partition] = (self.attempt, lines)
        self.staging.lost(self.attempt)

    @rule(again=st.booleans())
    def a_commit(self, again: bool) -> None:
        batch = self.next_batch - 1 if again and self.next_batch else self.next_batch
        chosen = self.whole.get(batch, {})
        winners = {partition: (WORKER, attempt, len(lines)) for partition, (attempt, lines) in chosen.items()}
        self.staging.commit(commit({**winners, 9: (WORKER + 1, 0, 1)}, batch=batch))
        if batch == self.next_batch:
            self.next_batch += 1
            self.due += [line for partition in sorted(chosen) for line in chosen[partition][1]]
            self.named += [CommitTaken("q", batch)] if chosen else []

    @rule(limit_bytes=st.integers(1, 200))
    def a_take(self, limit_bytes: int) -> None:
        taken = self.staging.take(limit_bytes)
        assert bool(taken) == bool(self.due)
        assert taken == self.due[: len(taken)]
        assert sum(len(line) + 1 for line in taken[:-1]) < limit_bytes
        del self.due[: len(taken)]
        self.finished += self.staging.take_finished()
        if not self.due:
            assert self.finished == self.named

    @invariant()
    def all_is_well(self) -> None:
        self.staging._check()
        assert self.staging.pending_lines == len(self.due)

    def teardown(self) -> None:
        self.staging.close()


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=many(100), stateful_step_count=30, deadline=None)

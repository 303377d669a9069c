"""A commit holds what is durable: what the coordinator announced, the workers wrote and the output contains."""

from dataclasses import replace

import pytest

from megaflow.control.checkpoint_messages import CheckpointBegun, CheckpointReady, CutWritten, DurableOperator
from megaflow.control.messages import Split
from megaflow.durable.commits import Commit, OperatorCut, OutputLength
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.errors import ProtocolError
from megaflow.job.launcher.store.commit_draft import CommitDraft, with_columns

LEFT = (Split(3, "/x/a", 40, 100),)


def segment(checkpoint: int, worker: int = 0) -> SegmentRef:
    return SegmentRef(segment_name(1, worker, checkpoint), checkpoint, worker, 100, 7, 5)


def begun(checkpoint: int, since: int | None, at_end: bool = False) -> CheckpointBegun:
    operators = (DurableOperator("count", 2),)
    return CheckpointBegun(checkpoint, 10 * checkpoint, since, operators, (0, 1), 2, at_end=at_end)


def after(latest: Commit, checkpoint: int, since: int | None, *whole: int) -> Commit:
    draft = CommitDraft(begun(checkpoint, since), 7.5)
    assert not draft.is_complete
    draft.length = 1000 * checkpoint
    draft.ready = CheckpointReady(checkpoint, (segment(checkpoint),), (("count", whole),) if whole else (), LEFT)
    assert draft.is_complete
    task = draft.commit(latest, (OutputLength("jsonl:/x/out", 1000 * checkpoint),), 12.5)
    commit = task.commit
    assert not draft.is_complete and task.left == LEFT
    assert commit.outputs == (OutputLength("jsonl:/x/out", 1000 * checkpoint),)
    assert (commit.time, commit.table, commit.next_worker, commit.written_at) == (10 * checkpoint, (0, 1), 2, 12.5)
    assert commit.begun_at == 7.5
    return commit


def test_segments_are_named_until_all_bins_were_written_whole_after_them() -> None:
    first = after(Commit(1, 0, 0, 1, app="a"), 1, None)
    assert first.operators[0].bases == (None, None) and [each.checkpoint for each in first.segments] == [1]
    second = after(first, 2, 1, 0)
    assert second.operators[0].bases == (2, None) and [each.checkpoint for each in second.segments] == [1, 2]
    fourth = after(second, 4, 2, 1)  # 3 was abandoned
    assert fourth.operators[0].bases == (2, 4) and [each.checkpoint for each in fourth.segments] == [2, 4]
    assert not fourth.ended and fourth.app == "a"


def test_what_follows_no_checkpoint_stands_alone() -> None:
    first = after(Commit(1, 0, 0, 1), 1, None, 0, 1)
    second = after(first, 2, None)
    assert second.operators[0].bases == (None, None) and [each.checkpoint for each in second.segments] == [2]


def test_one_that_does_not_follow_the_newest_is_refused() -> None:
    first = after(Commit(1, 0, 0, 1), 1, None)
    second = after(first, 2, 1)
    with pytest.raises(ProtocolError, match=r"checkpoint 3 follows checkpoint 1, but the last one .* is 2"):
        after(second, 3, 1)


def test_at_the_end_the_parts_of_all_workers_are_one() -> None:
    draft = CommitDraft(begun(5, None, at_end=True))
    for worker in (1, 0):
        draft.parts.append(CutWritten(5, (segment(5, worker),), (("count", (worker,)),), 0.1))
    draft.end()
    draft.length = 9
    task = draft.commit(Commit(4, 0, 0, 1), (OutputLength("-", 9),), 1.0)
    commit = task.commit
    assert commit.ended and task.left == () and commit.operators[0].bases == (5, 5) and len(commit.segments) == 2
    commit._check()


def test_what_an_operator_is_in_the_program_stands_in_the_commit_and_what_is_gone_is_remembered() -> None:
    cuts = tuple(OperatorCut(name, "", (1, 1), version=1) for name in ("words", "count"))
    latest = Commit(3, 1, 10, 2, operators=cuts, dropped=("lines",))
    operators = (DurableOperator("count", 2, version=4),)
    draft = CommitDraft(CheckpointBegun(2, 20, None, operators, (0, 1), 2), length=0)
    draft.ready = CheckpointReady(2, (segment(2),), (("count", (0, 1)),), ())
    commit = draft.commit(latest, (OutputLength("-", 0),), 1.0).commit
    assert commit.operators == (OperatorCut("count", "", (2, 2), version=4),) and commit.dropped == ("lines", "words")


def test_the_end_raises_the_watermark_to_what_it_has_closed() -> None:
    for watermark, deadline, wanted in [(100, 250, 250), (300, 250, 300), (None, 250, 250), (100, None, 100)]:
        draft = CommitDraft(replace(begun(5, None, at_end=True), watermark=watermark), deadline=deadline)
        draft.end()
        draft.length = 9
        assert draft.commit(Commit(4, 0, 0, 1), (OutputLength("-", 9),), 1.0).commit.watermark == wanted

def test_a_commit_has_the_columns_of_rows_that_it_has_batches_of() -> None:
    columns = {"orders": (("k", "long"), ("v", "string")), "regions": (("k", "long"),)}
    commit = Commit(4, 3, 7, 1, columns=())
    assert with_columns(commit, columns) is commit
    commit = replace(commit, spark=(("orders-0123abcd", 4),), columns=(("orders", (("old", "long"),)), ("z", ())))
    assert with_columns(commit, columns).columns == (("orders", columns["orders"]), ("z", ()))
    assert with_columns(commit, {}) is commit, "its lines have none"

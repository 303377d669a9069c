"""Spark's lines that a checkpoint finds untaken come back unchanged, wherever they were kept."""

from dataclasses import replace
from random import Random

import pytest

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.blocks import keys_of, states_of
from megaflow.durable.commits import Commit, UntakenLines
from megaflow.durable.store import Store
from megaflow.job.worker.reading.staged_units import joined
from megaflow.job.worker.reading.staging import Staging
from megaflow.job.worker.reading.untaken_lines import LinesCopy, LinesCut, restaged, untaken_batches
from megaflow.job.worker.snapshots.cut_packer import CutPacker
from megaflow.testing.simulated_disk import SimulatedDisk
from tests.open_files import open_files

ODD = ["", "two\nlines", "nul\0nul", "\0000\n", "x" * 5000, "\ud800 alone", "ünï"]


def staged(worker: int, lines: list[str], limit_bytes: int) -> Staging:
    """A staging with a committed batch, in messages of three lines each."""
    staging, name = Staging(worker, limit_bytes), ("q", "run", 0, 0, 1, worker)
    for start in range(0, len(lines), 3):
        some = lines[start : start + 3]
        text, separator = joined(some)
        staging.stage(StageLines(*name, len(some), text, separator), "executor")
    staging.end(StageEnd(*name, len(lines)), "executor")
    staging.commit(CommitBatch("q", "run", 0, {0: (worker, 1, len(lines))}))
    return staging


def written(staging: Staging, store: Store, segment_bytes: int = 1 << 20) -> tuple[UntakenLines, ...]:
    cut = LinesCut(PositionsAt(3, ()), 7, staging.copy())
    report = CutPacker(store, 1, staging.worker, list, segment_bytes).write(cut)
    assert isinstance(report, PositionsAt)
    return report.untaken


def taken(staging: Staging) -> list[str]:
    lines: list[str] = []
    while some := staging.take(100):
        lines += some
    return lines


@pytest.mark.parametrize("limit_bytes", [0, 6000, 1 << 20])
@pytest.mark.parametrize("before", [0, 1, 4, 7])
def test_lines_that_were_not_taken_are_taken_by_workers_that_go_on(limit_bytes: int, before: int) -> None:
    store = Store(SimulatedDisk(Random(1)).open())
    old = [staged(worker, [*ODD, f"{worker}"], limit_bytes) for worker in (0, 1, 2)]
    left = {staging.worker: [*ODD, f"{staging.worker}"] for staging in old}
    untaken: list[UntakenLines] = []
    for staging in old:
        while sum(map(len, (left[staging.worker],))) > len(ODD) + 1 - before:
            del left[staging.worker][: len(staging.take(1))]
        untaken += written(staging, store, segment_bytes=2000)
        assert taken(staging) == left[staging.worker], "a copy takes nothing"
    commit = Commit(9, 3, 7, 1, spark=(("q", 4),), untaken=tuple(untaken))
    readers = (5, 8)
    [command] = untaken_batches(commit, readers)
    assert (command.query, command.batch) == ("q", 4)
    for reader, workers in ((5, (0, 2)), (8, (1,))):
        staging = Staging(reader)
        staging.restore(restaged(commit, store, reader, readers))
        staging.commit(command)
        staging._check()
        assert taken(staging) == [line for worker in workers for line in left[worker]]
        assert [(each.query, each.batch) for each in staging.take_finished()] == [("q", 4)]


def test_the_rest_of_each_query_comes_back_as_its_own() -> None:
    store = Store(SimulatedDisk(Random(1)).open())
    old, lines = Staging(0), {query: [f"{query} {number}" for number in range(4)] for query in ("left", "right")}
    for query, some in lines.items():
        name = query, "run", 5, 0, 1, 0
        old.stage(StageLines(*name, 4, "\n".join(some)), "executor")
        old.end(StageEnd(*name, 4), "executor")
        old.commit(CommitBatch(query, "run", 5, {0: (0, 1, 4)}))
    assert old.take(1) == lines["left"][:1]
    untaken = written(old, store)
    assert [(each.query, each.lines) for each in untaken] == [("left", 3), ("right", 4)]
    commit = Commit(9, 3, 7, 1, spark=(("left", 5), ("right", 5), ("third", 2)), untaken=untaken)
    earlier = Commit(9, 3, 7, 1, spark=(("left", 5),), untaken=(replace(untaken[0], query=""),))  # an older store
    assert untaken_batches(earlier, (3,)) == untaken_batches(commit, (3,))[:1]
    commands = untaken_batches(commit, (3,))
    assert [(each.query, each.batch, each.winners) for each in commands] == [
        ("left", 5, {0: (3, 0, 3)}), ("right", 5, {0: (3, 0, 4)}), ("third", 2, {}),
    ]  # fmt: skip
    new = Staging(3)
    new.restore(restaged(commit, store, 3, (3,)))
    for command in reversed(commands):
        new.commit(command)
    found = list[tuple[str, str]]()
    while some := new.take(1):
        found += [(new.query, line) for line in some]
    assert found == [(query, line) for query in ("right", "left") for line in lines[query][query == "left" :]]
    assert [each.query for each in new.take_finished()] == ["right", "left"]


def test_a_copy_is_read_after_its_lines_are_taken_and_lets_go_of_its_files() -> None:
    before = open_files()
    staging = staged(0, ODD, limit_bytes=0)
    copy = staging.copy()
    assert taken(staging) == ODD
    units = [unit for block, _ in copy.blocks("q") for unit in zip(keys_of(block), states_of(block))]
    lines = [line for text, separator in units for line in text.split(separator)]
    assert (lines, copy.lines) == (ODD, len(ODD))
    copy.close()
    assert open_files() <= before


def test_a_worker_that_has_taken_all_writes_nothing() -> None:
    store = Store(SimulatedDisk(Random(1)).open())
    cut = LinesCut(PositionsAt(3, ()), 7, LinesCopy(0, {}, []))
    assert CutPacker(store, 1, 0, list, 1).write(cut) == cut.report
    assert untaken_batches(Commit(1, 1, 1, 1), (0,)) == ()
    assert untaken_batches(Commit(1, 1, 1, 1, spark=(("q", 2),)), (0,)) == (CommitBatch("q", "before", 2, {}),)

"""Rows are staged, taken, copied and restored like lines. A checkpoint finds exactly those that were not taken."""

from random import Random
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.commits import Commit
from megaflow.durable.store import Store
from megaflow.errors import ProtocolError
from megaflow.job.worker.process.named_inputs import NamedInputs, RowShape
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.job.worker.reading.staging import Staging
from megaflow.job.worker.reading.untaken_lines import LinesCut, restaged, untaken_batches
from megaflow.job.worker.snapshots.cut_packer import CutPacker
from megaflow.rows.packed_rows import RowPack, pack_rows
from megaflow.testing.simulated_disk import SimulatedDisk

SCHEMA = '{"type": "struct", "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]}'
NAME = ("q", "r", 0, 0, 1, 4)


def rows(start: int, stop: int) -> list[tuple[int, str]]:
    return [(number, "x" * number) for number in range(start, stop)]


def packed(some: list[Any], name: str = "orders") -> bytes:
    return pack_rows(RowPack(name, SCHEMA, [list(column) for column in zip(*some, strict=True)]))


def staging(*chunks: tuple[list[Any], str], limit_bytes: int = 1 << 20) -> Staging:
    """A staging with a committed batch, a message for each chunk."""
    made = Staging(4, limit_bytes)
    made.unpack = inputs().unpack
    for some, name in chunks:
        made.stage(StageLines(*NAME, len(some), packed(some, name), ""), "executor")
    total = sum(len(some) for some, _ in chunks)
    made.end(StageEnd(*NAME, total), "executor")
    made.commit(CommitBatch("q", "r", 0, {0: (4, 1, total)}))
    return made


def inputs() -> NamedInputs:
    made = NamedInputs(("orders", "views"))
    made.read("orders", RowShape())
    made.read("views", RowShape())
    return made


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
@pytest.mark.parametrize("some_bytes", [1, 60, 10_000])
def test_rows_are_taken_in_order_a_batch_of_one_input_at_a_time(limit_bytes: int, some_bytes: int) -> None:
    made = staging((rows(0, 9), "orders"), (rows(9, 12), "views"), (rows(12, 13), "orders"), limit_bytes=limit_bytes)
    taken: dict[str, list[Any]] = {"orders": [], "views": []}
    while batch := made.take(some_bytes):
        assert made.input is not None
        taken[made.input] += batch
        made._check()
    assert taken == {"orders": rows(0, 9) + rows(12, 13), "views": rows(9, 12)}
    assert (made.pending_lines, made.held_bytes, len(made.take_finished())) == (0, 0, 1)


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
@pytest.mark.parametrize("taken", [0, 1, 3, 4, 8])
def test_what_is_not_taken_is_in_a_checkpoint_also_what_is_looked_up_ahead(limit_bytes: int, taken: int) -> None:
    made = staging((rows(0, 4), "orders"), (rows(4, 8), "orders"), limit_bytes=limit_bytes)
    queue = LineQueue(made, rate=1.0)
    for _ in range(taken):  # at this rate, one row at a time
        assert queue.take(float(_)) is not None
    assert queue.ready is (taken < 8)
    copy = queue.untaken()
    store = Store(SimulatedDisk(Random(1)).open())
    cut = None if copy is None else LinesCut(PositionsAt(3, ()), 7, copy)
    report = PositionsAt(3, ()) if cut is None else CutPacker(store, 1, 4, list, 1).write(cut)
    assert isinstance(report, PositionsAt)
    untaken = report.untaken
    assert sum(each.lines for each in untaken) == 8 - taken
    commit = Commit(9, 3, 7, 1, spark=(("q", 4),), untaken=untaken)
    [command], next_one = untaken_batches(commit, (5,)), Staging(5)
    next_one.unpack = inputs().unpack
    next_one.restore(restaged(commit, store, 5, (5,)))
    assert command is not None
    next_one.commit(command)
    found: list[Any] = []
    while batch := next_one.take(100):
        found += batch
    assert found == rows(taken, 8)


def test_rows_in_another_number_than_announced_or_for_a_program_of_lines_are_a_protocol_error() -> None:
    for wrong in (StageLines(*NAME, 0, packed(rows(0, 2)), ""), StageLines(*NAME, 2, packed(rows(0, 2)), "\n")):
        with pytest.raises(ProtocolError, match="Worker 4 received a message that no Spark task sends"):
            Staging(4).stage(wrong, "executor")
    made = staging((rows(0, 3), "orders"))
    made.unpack = lambda data: ("orders", rows(0, 2))
    with pytest.raises(ProtocolError, match="2 staged rows arrived as 3"):
        made.take(100)
    with pytest.raises(ProtocolError, match="bytes of rows arrived at a program that reads lines"):
        lines = staging((rows(0, 3), "orders"))
        lines.unpack = Staging(4).unpack
        lines.take(100)

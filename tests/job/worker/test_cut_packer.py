"""The pieces of one worker's operators are packed into segments."""

import errno
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.checkpoint_messages import CutFailed, CutWritten
from megaflow.durable.blocks import Block, BlockKind, keys_of, pack
from megaflow.durable.segments import SegmentReader
from megaflow.durable.store import Store
from megaflow.job.worker.snapshots.cut_keeper import CutKeeper
from megaflow.job.worker.snapshots.cut_packer import CutPacker
from megaflow.megaphone.base.durability import Piece
from megaflow.testing.simulated_disk import SimulatedDisk
from tests.words import says


def piece(number: int, operator: str, at_end: bool = False) -> Piece:
    return Piece(number, number - 1 or None, 10 * number, operator, (0, 1), at_end)


def delta(operator: str, *keys: str) -> Block:
    return pack(BlockKind.DELTA, operator, None, keys, [1] * len(keys))


def whole(operator: str, bin: int, *keys: str) -> Block:
    return pack(BlockKind.BIN, operator, bin, keys, [1] * len(keys))


class Bench:
    """A packer over a disk in memory."""

    def __init__(self, operators: Sequence[str] = ("a", "b"), segment_bytes: int = 1 << 20) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.store = Store(self.disk.open())
        self.packer = CutPacker(self.store, 3, 7, lambda: operators, segment_bytes)

    def keys(self, report: CutWritten | CutFailed | None) -> list[object]:
        assert isinstance(report, CutWritten)
        found = []
        for ref in report.segments:
            reader = SegmentReader(ref.name, partial(self.store.read, ref.name), ref.length)
            assert (reader.header.number, reader.header.worker) == (report.checkpoint, 7)
            found += [key for block in reader.blocks() for key in keys_of(block)]
        return found


def test_it_is_written_when_each_operator_has_ended_its_piece() -> None:
    bench = Bench()
    take = bench.packer.take
    assert take(piece(1, "a"), delta("a", "x")) is None
    assert take(piece(1, "b"), whole("b", 1, "y")) is None
    assert take(piece(1, "a"), None) is None
    assert take(piece(1, "b"), whole("b", 0)) is None
    report = take(piece(1, "b"), None)
    assert bench.keys(report) == ["x", "y"]
    assert isinstance(report, CutWritten) and report.whole == (("b", (0, 1)),)
    assert [ref.name for ref in report.segments] == ["i3-w7-000001.seg"]


def test_a_worker_with_nothing_to_say_writes_no_file() -> None:
    bench = Bench(["a"])
    assert bench.packer.take(piece(1, "a"), None) == CutWritten(1, (), (), 0.0)
    assert bench.store.list() == {}


@given(st.lists(st.lists(st.text(max_size=5), max_size=6, unique=True), max_size=6), st.integers(1, 200))
def test_each_segment_is_closed_when_it_is_large_enough_and_all_have_each_key(cut: list[list[str]], limit: int) -> None:
    bench = Bench(["a"], segment_bytes=limit)
    lengths = []
    for keys in cut:
        assert bench.packer.take(piece(1, "a"), delta("a", *keys)) is None
        filling = bench.packer._segment
        assert filling is None or filling.length < limit, "no more than one segment is in memory"
        lengths.append(filling is None)
    report = bench.packer.take(piece(1, "a"), None)
    assert bench.keys(report) == [key for keys in cut for key in keys]
    assert isinstance(report, CutWritten)
    assert len(report.segments) == sum(lengths) + bool(lengths and not lengths[-1])
    assert [ref.name for ref in report.segments] == [f"i3-w7-{1 + n:06}.seg" for n in range(len(report.segments))]


def test_a_long_cut_has_several_segments() -> None:
    bench = Bench(["a"], segment_bytes=100)
    for number in range(20):
        assert bench.packer.take(piece(1, "a"), delta("a", f"key {number} {'.' * 20}")) is None
    report = bench.packer.take(piece(1, "a"), None)
    assert len(bench.keys(report)) == 20
    assert isinstance(report, CutWritten) and len(report.segments) > 5


def test_what_is_left_of_an_abandoned_checkpoint_is_no_part_of_the_next() -> None:
    bench = Bench()
    take = bench.packer.take
    take(piece(1, "a"), delta("a", "old"))
    take(piece(1, "a"), None)
    take(piece(2, "a"), delta("a", "new"))
    assert take(piece(1, "b"), delta("b", "late")) is None
    assert take(piece(1, "b"), None) is None
    assert take(piece(2, "a"), None) is None
    assert bench.keys(take(piece(2, "b"), None)) == ["new"]


def test_a_full_disk_fails_the_checkpoint_and_not_the_next() -> None:
    bench = Bench(["a"])
    bench.disk.happenings[1] = "ENOSPC"
    bench.packer.take(piece(1, "a"), delta("a", "x"))
    failed = bench.packer.take(piece(1, "a"), None)
    assert isinstance(failed, CutFailed) and (failed.checkpoint, failed.errno) == (1, errno.ENOSPC)
    assert says(failed.reason, "i3-w7-000001.seg", "No space left on device")
    bench.packer.take(piece(2, "a"), delta("a", "x"))
    assert bench.keys(bench.packer.take(piece(2, "a"), None)) == ["x"]


def keeper(bench: Bench, woken: list[int]) -> CutKeeper:
    return CutKeeper(bench.packer, lambda: 100.0, lambda: woken.append(1))


def test_a_thread_writes_and_what_came_of_the_end_is_returned_and_not_reported() -> None:
    bench, woken = Bench(["a"]), list[int]()
    kept = keeper(bench, woken)
    for number in range(1, 4):
        kept.write(piece(number, "a"), delta("a", str(number)))
        kept.write(piece(number, "a"), None)
    kept.write(piece(4, "a", at_end=True), delta("a", "end"))
    kept.write(piece(4, "a", at_end=True), None)
    assert bench.keys(kept.finish()) == ["end"]
    reports = kept.take_reports()
    assert [report.checkpoint for report in reports] == [1, 2, 3] and len(woken) == 4
    assert all(isinstance(report, CutWritten) and report.seconds > 100.0 for report in reports)
    assert kept.take_reports() == []


def test_a_worker_that_has_cut_nothing_has_no_thread_to_wait_for() -> None:
    assert keeper(Bench(), []).finish() is None


def test_a_fault_of_the_thread_reaches_whoever_asks_or_waits() -> None:
    def wrong() -> list[str]:
        raise ZeroDivisionError("what is wrong")

    bench = Bench()
    kept = CutKeeper(CutPacker(bench.store, 1, 0, wrong), lambda: 0.0, lambda: None)
    kept.write(piece(1, "a"), None)
    for call in kept.finish, kept.take_reports, lambda: kept.write(piece(1, "a"), None):
        with pytest.raises(ZeroDivisionError, match="what is wrong"):
            call()

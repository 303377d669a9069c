"""Outputs leave in epoch order, once their epoch is closed everywhere."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.errors import ProtocolError
from megaflow.job.launcher.outputs.epoch_merge import EpochMerge, Mark
from megaflow.job.launcher.outputs.writer import ListWriter

WORKERS = (0, 2, 5)


@st.composite
def conversations(draw: st.DrawFn) -> list[OutputBatch | OutputClosed]:
    """Messages of three consistent workers, interleaved in any order. The last one of each closes all its epochs."""
    lists: list[list[OutputBatch | OutputClosed]] = []
    for worker in WORKERS:
        said: list[OutputBatch | OutputClosed] = []
        closed = 0
        for number in range(draw(st.integers(0, 6))):
            if draw(st.booleans()):
                closed += draw(st.integers(1, 3))
                said.append(OutputClosed(worker, closed))
            else:
                said.append(OutputBatch(worker, closed + draw(st.integers(0, 3)), [(worker, number)]))
        lists.append([*said, OutputClosed(worker, None)])
    mixed = []
    while rest := [said for said in lists if said]:
        mixed.append(draw(st.sampled_from(rest)).pop(0))
    return mixed


@given(conversations())
def test_every_record_leaves_once_in_epoch_order_and_as_soon_as_its_epoch_is_closed(
    said: list[OutputBatch | OutputClosed],
) -> None:
    merge = EpochMerge(WORKERS)
    records: list[tuple[int, Any]] = []
    left: list[tuple[int, Any]] = []
    closed: dict[int, float] = dict.fromkeys(WORKERS, 0)
    for message in said:
        if isinstance(message, OutputBatch):
            merge.add(message)
            records += [(message.epoch, record) for record in message.records]
        else:
            closed[message.worker] = float("inf") if message.epoch is None else message.epoch
            left += [(epoch, record) for epoch, some, _ in merge.close(message) for record in some]
        assert sorted(left) == sorted(r for r in records if r[0] < min(closed.values()))
        assert [epoch for epoch, _ in left] == sorted(epoch for epoch, _ in left)
    assert sorted(left) == sorted(records)
    for worker in WORKERS:  # a worker's records of an epoch keep their order, and workers follow one another
        assert [r for r in left if r[1][0] == worker] == sorted(
            (r for r in records if r[1][0] == worker), key=lambda r: r[0]
        )
    assert [(epoch, record[0]) for epoch, record in left] == sorted((epoch, record[0]) for epoch, record in left)


def test_an_epoch_is_closed_when_all_workers_present_have_closed_it() -> None:
    merge = EpochMerge([0, 1])
    merge.add(OutputBatch(0, 5, ["a"]))
    merge.add(OutputBatch(0, 8, ["b"]))
    assert merge.close(OutputClosed(0, 9)) == []
    assert merge.close(OutputClosed(1, 6)) == [(5, ["a"], "")]
    merge.join([3])
    assert merge.close(OutputClosed(1, 9)) == [], "worker 3 may have something for epochs 6 to 8"
    merge.add(OutputBatch(3, 8, ["c"]))
    assert merge.close(OutputClosed(1, None)) == [], "worker 1 has left"
    assert merge.close(OutputClosed(3, 9)) == [(8, ["b", "c"], "")]
    merge.add(OutputBatch(3, 9, ["d"]))
    assert merge.close(OutputClosed(3, None)) == []
    merge.join([4])
    assert merge.close(OutputClosed(0, None)) == [], "worker 4 has said nothing yet"
    assert merge.close(OutputClosed(4, None)) == [(9, ["d"], "")]


def test_who_joins_when_all_is_closed_changes_nothing() -> None:
    merge = EpochMerge([0])
    merge.add(OutputBatch(0, 5, ["a"]))
    assert merge.close(OutputClosed(0, None)) == [(5, ["a"], "")]
    merge.join([1])
    assert merge.close(OutputClosed(1, 3)) == []
    assert merge.close(OutputClosed(1, None)) == []


def test_output_for_a_closed_epoch_or_from_a_stranger_is_a_broken_protocol() -> None:
    merge = EpochMerge([0])
    merge.close(OutputClosed(0, 5))
    for batch in (OutputBatch(0, 4, ["a"]), OutputBatch(1, 9, ["a"])):
        with pytest.raises(ProtocolError, match=f"Worker {batch.worker} "):
            merge.add(batch)


def test_a_list_keeps_the_records() -> None:
    writer = ListWriter()
    writer.write(1, [1, 2])
    writer.write(4, [3])
    writer.close()
    assert writer.records == [1, 2, 3]


@given(conversations(), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=4))
def test_a_mark_leaves_once_exactly_between_the_epochs_before_it_and_the_others(
    said: list[OutputBatch | OutputClosed], asked: list[tuple[int, int]]
) -> None:
    """`asked`: the message before which a mark is requested, and how many epochs beyond the closed ones it lies."""
    merge, left, marks = EpochMerge(WORKERS), list[Any](), list[Mark]()
    closed: dict[int, float] = dict.fromkeys(WORKERS, 0)
    for at, message in enumerate(said):
        for _, ahead in (each for each in asked if each[0] == at):
            least = min(closed.values())
            if least < float("inf"):
                epoch = max(int(least) + ahead, marks[-1].epoch if marks else 0)
                marks.append(Mark(len(marks), epoch))
                left += merge.mark(marks[-1])
        if isinstance(message, OutputBatch):
            merge.add(message)
        else:
            closed[message.worker] = float("inf") if message.epoch is None else message.epoch
            left += merge.close(message)
        due = [mark for mark in marks if mark.epoch <= min(closed.values())]
        assert [each for each in left if isinstance(each, Mark)] == due, "as soon as all before it has left"
    for place, mark in enumerate(left):
        if isinstance(mark, Mark):
            assert all(each[0] < mark.epoch for each in left[:place] if not isinstance(each, Mark))
            assert all(each[0] >= mark.epoch for each in left[place:] if not isinstance(each, Mark))


def test_a_mark_before_what_has_left_is_refused() -> None:
    merge = EpochMerge([0])
    merge.close(OutputClosed(0, 7))
    assert merge.mark(Mark(1, 7)) == [Mark(1, 7)]
    with pytest.raises(ProtocolError, match="Checkpoint 2 belongs to epoch 6, which is already closed"):
        merge.mark(Mark(2, 6))


def test_records_in_memory_are_cut_back_to_what_they_were() -> None:
    writer = ListWriter()
    writer.write(1, ["a", "b"])
    length = writer.sync()
    writer.write(2, ["c"])
    writer.cut_back(length)
    assert writer.records == ["a", "b"]

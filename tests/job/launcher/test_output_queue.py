"""A thread writes the outputs, so a slow reader of outputs delays no other part."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from megaflow.errors import OutputError
from megaflow.job.launcher.outputs import output_queue
from megaflow.job.launcher.outputs.epoch_merge import Mark
from megaflow.job.launcher.outputs.output_queue import FULL_BYTES, OutputQueue
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form
from tests.bench import WAIT_SECONDS, Bench
from tests.words import says


class Notebook(Writer):
    """A writer that notes its calls in order, and blocks while `open` is not set."""

    def __init__(self, form: Form = "text") -> None:
        self.form = form
        self.told: list[Any] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.fails: Exception | None = None
        self.threads: set[int] = set()

    def write(self, epoch: int, records: list[Any]) -> None:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.open.wait(WAIT_SECONDS)
        if self.fails is not None:
            raise self.fails
        self.told.append((epoch, len(records)))

    def flush(self) -> None:
        self.told.append("flush")

    def sync(self) -> int:
        return sum(records for _, records in self._written())

    def cut_back(self, length: int) -> None:
        self.told.append(f"cut back to {length}")

    def _written(self) -> list[tuple[int, int]]:
        return [each for each in self.told if isinstance(each, tuple)]

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.told.append("close")


class OutputBench(Bench):
    """A queue whose writer is a notebook."""

    def __init__(self, form: Form = "text") -> None:
        super().__init__("megaflow-output")
        self.writer = Notebook(form)
        self.queue = OutputQueue(self.writer, self.said.append)

    def start(self) -> None:
        self.queue.start(self.woken.release)

    def finish(self) -> None:
        self.queue.finish()
        while not self.queue.is_finished:
            self.wait()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutputBench]:
    made = OutputBench()
    yield made
    made.writer.open.set()


def test_epochs_are_written_in_order_and_flushed_by_one_thread(bench: OutputBench) -> None:
    bench.start()
    bench.queue.put([(1, ["a"], ""), (2, ["b"] * 250, "")])
    bench.queue.put([])
    bench.finish()
    bench.queue.close()
    assert [each for each in bench.writer.told if each != "flush"] == [(1, 1), (2, 100), (2, 100), (2, 50), "close"]
    assert bench.writer.told[-2:] == ["flush", "close"] and bench.queue.records == 0
    assert len(bench.writer.threads) == 1 and threading.get_ident() not in bench.writer.threads


def test_nothing_is_flushed_before_the_end_if_there_is_nothing(bench: OutputBench) -> None:
    bench.start()
    bench.finish()
    assert bench.writer.told == ["flush"]
    bench.queue.close()


def test_a_job_that_fails_closes_without_a_flush_of_nothing(bench: OutputBench) -> None:
    bench.start()
    bench.queue.close()
    assert bench.writer.told == ["close"]


def test_what_happens_while_nobody_listens_is_told_to_the_next_one_who_does(bench: OutputBench) -> None:
    """If the disk fails between two attempts of a job, the next attempt must still hear from the queue."""
    unheard = threading.Event()

    bench.queue.start(unheard.set)  # the loop has ended
    bench.writer.fails = OutputError("the disk is full")
    bench.queue.put([(1, ["a"], "")])
    assert unheard.wait(WAIT_SECONDS)
    bench.start()
    bench.wait()
    with pytest.raises(OutputError, match="full"):
        bench.queue.check()


def test_one_that_has_not_begun_is_closed_where_it_is(bench: OutputBench) -> None:
    bench.queue.close()
    assert bench.writer.told == ["close"] and bench.writer.threads == {threading.get_ident()}


def test_it_is_full_until_half_of_it_is_written(bench: OutputBench) -> None:
    bench.writer.open.clear()
    bench.start()
    part = ["x" * (FULL_BYTES // 8)]
    for epoch in range(8):
        assert not bench.queue.is_full
        bench.queue.put([(epoch, part, "")])
    assert bench.queue.is_full and bench.queue.records == 8
    bench.writer.open.set()
    bench.wait()
    assert not bench.queue.is_full
    bench.finish()
    bench.queue.close()


def test_records_that_are_kept_anyway_are_not_counted() -> None:
    bench = OutputBench("records")
    bench.queue.put([(1, [object()], "")])
    assert not bench.queue.is_full
    bench.queue.close()


def test_what_the_writer_raises_is_raised_once_and_it_is_closed(bench: OutputBench) -> None:
    bench.writer.fails = OSError("disk full")
    bench.start()
    bench.queue.put([(1, ["a"], "")])
    bench.wait()
    with pytest.raises(OSError, match="disk full"):
        bench.queue.check()
    bench.queue.check()
    bench.queue.close()
    assert bench.writer.told == ["close"]


def test_who_does_not_read_is_not_waited_for(bench: OutputBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_queue, "STUCK_SECONDS", 0.1)
    bench.writer.open.clear()
    bench.start()
    bench.queue.put([(1, ["a"] * 3, "")])
    bench.queue.put([(2, ["a"] * 1234, "")])
    assert bench.writer.begun.wait(WAIT_SECONDS)
    bench.queue.close()
    assert len(bench.said) == 1 and says(bench.said[0], "no reader", "1237 records were not written")
    assert bench.writer.told == []


def test_what_is_dropped_is_not_written(bench: OutputBench) -> None:
    bench.writer.open.clear()
    bench.start()
    bench.queue.put([(1, ["a"] * 101, ""), (2, ["b"], "")])
    assert bench.writer.begun.wait(WAIT_SECONDS)
    bench.queue.drop()
    bench.writer.open.set()
    bench.queue.close()
    assert bench.writer.told == [(1, 100), "close"] and bench.said == []


def test_at_a_mark_the_thread_tells_how_long_the_output_is_with_all_before_it(bench: OutputBench) -> None:
    bench.start()
    bench.queue.put([(1, ["a"] * 101, ""), Mark(7, 2), (2, ["b"], ""), Mark(8, 3)])
    synced: list[Any] = []
    while len(synced) < 2:
        bench.wait()
        synced += bench.queue.synced()
    assert synced == [(Mark(7, 2), 101), (Mark(8, 3), 102)] and bench.queue.synced() == []
    bench.finish()


def test_a_cut_takes_what_waits_and_then_what_is_written(bench: OutputBench) -> None:
    bench.writer.open.clear()
    bench.start()
    bench.queue.put([(1, ["a"], "")])
    assert bench.writer.begun.wait(WAIT_SECONDS)
    bench.queue.put([(2, ["b"] * 5, ""), Mark(7, 3), (3, ["c" * FULL_BYTES], "")])
    assert bench.queue.is_full
    bench.queue.cut_back(0)
    assert not bench.queue.is_full and bench.queue.records == 0
    bench.writer.open.set()
    bench.queue.put([(4, ["d"], "")])
    bench.finish()
    assert [each for each in bench.writer.told if each != "flush"] == [(1, 1), "cut back to 0", (4, 1)]
    assert bench.queue.synced() == [] and not bench.queue.is_full and bench.queue.records == 0


def test_no_mark_from_before_a_cut_is_told_whether_it_was_reached_or_is_being(
    bench: OutputBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt numbers its checkpoints from the same commit, so it could take the old length for its own."""
    bench.start()
    bench.queue.put([(1, ["a"], ""), Mark(7, 2)])
    bench.wait()
    bench.queue.cut_back(0)
    assert bench.queue.synced() == []

    syncing, may_end = threading.Event(), threading.Event()

    def sync() -> int:
        syncing.set()
        assert may_end.wait(WAIT_SECONDS)
        return 1

    monkeypatch.setattr(bench.writer, "sync", sync)
    bench.queue.put([Mark(7, 3)])
    assert syncing.wait(WAIT_SECONDS)
    bench.queue.cut_back(0)
    may_end.set()
    bench.queue.put([Mark(8, 4)])
    while not (told := bench.queue.synced()):
        bench.wait()
    assert told == [(Mark(8, 4), 1)]
    bench.queue.close()


def test_what_makes_the_output_fail_is_raised_once() -> None:
    bench = OutputBench()
    error = OutputError("nobody reads it")
    bench.writer.fails = error
    bench.queue.start(lambda: None)
    bench.queue.fail(error)
    with pytest.raises(OutputError, match="nobody reads it"):
        bench.queue.check()
    bench.queue.put([(1, ["a"], "")])
    bench.queue.close()

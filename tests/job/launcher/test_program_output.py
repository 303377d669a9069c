"""A program reads a job's outputs while the job runs: each record once, despite interrupts, in bounded memory."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from megaflow.job.launcher.outputs.epoch_merge import Mark
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.program_output import Outputs, ProgramWriter

WAIT_SECONDS = 90.0


class PlayedJob:
    """A job whose outputs end when it is stopped."""

    def __init__(self, writer: ProgramWriter, error: Exception | None = None, last: list[Any] | None = None) -> None:
        self.writer = writer
        self.error = error
        self.last = last or []  # emitted when the job is stopped
        self.stops = 0

    def stop_or_end(self) -> None:
        self.stops += 1
        self.writer.write(9, self.last)
        self.writer.close()

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


def played(records: Any = (), durable: bool = False, **more: Any) -> tuple[ProgramWriter, PlayedJob, Outputs]:
    writer = ProgramWriter(durable)
    writer.write(1, [*records])
    job = PlayedJob(writer, **more)
    return writer, job, Outputs(writer, job)


@contextmanager
def interrupted(seconds: float, again: float = 0.0) -> Iterator[None]:
    """Raise KeyboardInterrupt as Ctrl-C does, but only where this thread is in `consume`.

    An exception in a destructor cannot be caught: pytest's hook gets it. There is no interrupt in that hook, because it
    would fail the test.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_globals.get("__name__") == "_pytest.unraisableexception":
                return
            if frame.f_code is consume.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def consume(outputs: Outputs, seen: list[Any], total: int) -> None:
    """Read outputs as a program does."""
    for record in outputs:
        seen.append(record)
        if len(seen) == total:
            break


def test_records_come_in_order_and_what_made_the_job_fail_behind_them() -> None:
    writer, _, outputs = played("ab", error=ConnectionError("mine"))
    assert [next(outputs), next(outputs)] == ["a", "b"]
    writer.write(2, ["c"])
    writer.close()
    assert next(outputs) == "c"
    with pytest.raises(ConnectionError, match="mine"):
        next(outputs)


def test_who_reads_anew_goes_on_with_what_nobody_was_given() -> None:
    writer, job, outputs = played("abcd")
    for record in outputs:
        if record == "b":
            break
    writer.close()
    assert [*Outputs(writer, job)] == ["c", "d"]


def test_no_record_is_lost_or_doubled_whatever_ctrl_c_interrupts() -> None:
    total, interrupts = 300_000, 0
    seen: list[int] = []
    _, job, outputs = played(range(total))
    with interrupted(0.0005, 0.0005):
        while len(seen) < total:
            try:
                consume(outputs, seen, total)
            except KeyboardInterrupt:
                interrupts += 1
    assert seen == [*range(total)] and interrupts > 5 and not job.stops


def test_ctrl_c_while_it_waits_stops_the_job_and_is_raised_behind_the_last_record() -> None:
    _, job, outputs = played(["a"], last=["b", "c"])
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupted(0.02, 0.0):
        consume(outputs, seen, 9)
    assert seen == ["a", "b", "c"] and job.stops == 1


def test_the_workers_hold_their_outputs_while_the_program_does_not_read() -> None:
    writer, _, outputs = played()
    woken = threading.Event()
    queue = OutputQueue(writer, full_bytes=100_000)
    queue.start(woken.set)
    try:
        for epoch in range(20):
            queue.put([(epoch, ["x" * 98] * 100, "")])
        assert queue.is_full
        for _ in range(100):
            next(outputs)
        assert queue.is_full, "most are still unread"
        for _ in range(1600):
            assert next(outputs) == "x" * 98
        assert not queue.is_full and woken.is_set()
    finally:
        queue.close()
    assert len([*outputs]) == 300


def test_who_waits_for_the_end_has_all_kept_unless_another_thread_reads() -> None:
    writer, _, outputs = played()
    queue = OutputQueue(writer, full_bytes=1000)
    queue.put([(1, ["x" * 98] * 100, "")])
    assert queue.is_full
    queue.start(lambda: None)
    try:
        with writer.awaited():
            assert next(outputs)  # so all outputs are written
            wait_until_written(queue)
            assert not queue.is_full and not writer.unread_bytes
        assert writer.unread_bytes > 1000
        reader = threading.Thread(target=wait_in, args=(go_on := threading.Event(),))
        reader.start()
        writer.reader = reader
        with writer.awaited():
            assert writer.unread_bytes > 1000
        go_on.set()
        reader.join()
        with writer.awaited():
            assert not writer.unread_bytes, "who has read last is gone"
    finally:
        queue.close()


def wait_in(go_on: threading.Event) -> None:
    assert go_on.wait(WAIT_SECONDS)


def wait_until_written(queue: OutputQueue) -> None:
    queue.finish()
    while not queue.is_finished:
        threading.Event().wait(0.001)


def test_of_a_durable_job_records_come_when_a_checkpoint_has_them() -> None:
    writer, _, outputs = played("abc", durable=True)
    assert writer.sync() == 3 and not writer.ready and not writer.unread_bytes
    writer.write(2, ["d", "e"])
    writer.committed(3)
    assert [*writer.ready] == ["a", "b", "c"]
    writer.cut_back(3)  # processes were lost
    writer.write(2, ["d2"])
    assert writer.sync() == 4
    writer.committed(4)
    writer.write(3, ["never committed"])
    writer.close()
    assert [*outputs] == ["a", "b", "c", "d2"]


def test_a_queue_cuts_it_back_and_tells_its_length_at_a_mark() -> None:
    writer, _, outputs = played(durable=True)
    queue, told = OutputQueue(writer), threading.Event()
    queue.start(told.set)
    queue.put([(1, ["a"], ""), Mark(1, 2), (2, ["b"], "")])
    assert told.wait(WAIT_SECONDS)
    [(mark, length)] = queue.synced()
    assert (mark.checkpoint, length) == (1, 1)
    queue.committed(length)
    assert next(outputs) == "a"
    queue.cut_back(1)
    queue.close()
    assert [*outputs] == []


def test_a_coroutine_reads_and_lets_others_run() -> None:
    writer, _, outputs = played(["a"])

    async def feed() -> None:
        for record in "bcd":
            await asyncio.sleep(0.001)
            await asyncio.to_thread(writer.write, 2, [record])
        writer.close()

    async def main() -> list[Any]:
        feeding = asyncio.create_task(feed())
        seen = [record async for record in outputs]
        await feeding
        return seen

    assert asyncio.run(main()) == ["a", "b", "c", "d"]


def test_a_coroutine_that_is_cancelled_loses_nothing() -> None:
    writer, job, outputs = played()

    async def main() -> list[Any]:
        reading = asyncio.create_task(anext(outputs))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.to_thread(writer.write, 1, ["a"])
        writer.close()
        return [record async for record in outputs]

    assert asyncio.run(main()) == ["a"] and not job.stops

"""The launcher's lines are read by a thread, as far as they are wanted, whatever their source does."""

import contextvars
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.file_lines import FileLines
from megaflow.job.launcher.line_reader import AHEAD_BYTES, LineReader
from megaflow.job.launcher.pulled_source import PulledLines

WAIT_SECONDS = 30.0


class Bench:
    """A reader, and what the launcher's loop does with it."""

    def __init__(self, source: Iterable[Any] | FileLines) -> None:
        self.woken = threading.Semaphore(0)
        lines = source if isinstance(source, FileLines) else PulledLines(source)
        self.reader = LineReader(lines, self.woken.release)
        self.close = self.reader.close
        self.reader.start()

    def take(self) -> list[str] | None:
        """Wait for the next lines; None if there are no more."""
        while (taken := self.reader.take()) is not None and not taken[0]:
            assert self.woken.acquire(timeout=WAIT_SECONDS), "nobody said that lines have come"
        if taken is None:
            return None
        assert taken[1] == sum(len(line) + 1 for line in taken[0])
        return taken[0]

    def take_all(self) -> list[str]:
        found: list[str] = []
        while (lines := self.take()) is not None:
            found += lines
        return found


def test_all_lines_come_in_order_without_their_ends() -> None:
    lines = [f"line {number}\n" for number in range(100_000)]
    with closing(Bench(lines)) as bench:
        assert bench.take_all() == [line[:-1] for line in lines]
    with closing(Bench(["a\n", "b\r\n", "", "c"])) as bench:
        assert bench.take_all() == ["a", "b", "", "c"]


@pytest.mark.parametrize("line", ["", "x\n", "x" * 1000])
def test_an_iterable_is_pulled_no_further_than_it_may(line: str) -> None:
    pulled = taken = 0

    def endless() -> Iterator[str]:
        nonlocal pulled
        while True:
            pulled += 1
            yield line

    with closing(Bench(endless())) as bench:
        limit = AHEAD_BYTES // (len(line.rstrip()) + 1) + 2
        for _ in range(20):
            taken += len(bench.take() or [])
            assert taken <= pulled <= taken + limit
    assert not bench.reader._thread.is_alive() and pulled <= taken + limit


def test_the_end_is_noticed_though_it_comes_while_the_loop_looks() -> None:
    class EndingReader(LineReader):
        """Ends when the loop looks whether it has ended, for the first time, and just after that."""

        _has_ended = False

        @property
        def _ended(self) -> bool:
            before = self._has_ended
            if threading.current_thread() is threading.main_thread() and not before:
                go_on.set()
                self._thread.join(WAIT_SECONDS)
            return before

        @_ended.setter
        def _ended(self, ended: bool) -> None:  # type: ignore[override]
            self._has_ended = ended

    go_on, woken = threading.Event(), threading.Event()

    def nothing() -> Iterator[str]:
        assert go_on.wait(WAIT_SECONDS)
        yield from ()

    with closing(EndingReader(PulledLines(nothing()), woken.set)) as reader:
        reader.start()
        assert reader.take() == ([], 0) and woken.is_set()
        assert reader.take() is None


def test_lines_come_though_the_next_one_does_not() -> None:
    go_on = threading.Event()

    def slow() -> Iterator[str]:
        yield from "abc"
        assert go_on.wait(WAIT_SECONDS)
        yield "d"

    with closing(Bench(slow())) as bench:
        found: list[str] = []
        while len(found) < 3:
            found += bench.take() or []
        assert bench.reader.take() == ([], 0)
        go_on.set()
        assert found + bench.take_all() == ["a", "b", "c", "d"]


def test_what_a_source_raises_comes_after_its_lines_with_its_traceback() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise KeyError("mine")

    with closing(Bench(broken())) as bench:
        assert bench.take() == ["a"]
        with pytest.raises(KeyError, match="mine") as raised:
            bench.take()
    assert raised.traceback[-1].name == "broken"


def test_what_is_no_text_is_refused_by_its_type() -> None:
    with closing(Bench([b"x"])) as bench, pytest.raises(UsageError, match=r"b'x' \(bytes\)"):
        bench.take()


def test_one_thread_touches_the_source_in_the_context_of_its_owner() -> None:
    owner = contextvars.ContextVar("owner", default="nobody")
    owner.set("me")
    seen: set[tuple[str, int, str]] = set()

    class Source:
        def note(self, what: str) -> None:
            seen.add((what, threading.get_ident(), owner.get()))

        def __iter__(self) -> Iterator[str]:
            self.note("iter")
            for _ in range(1000):
                self.note("next")
                yield "line" * 100

    with closing(Bench(Source())) as bench:
        bench.take_all()
    assert {(what, context) for what, _, context in seen} == {("iter", "me"), ("next", "me")}
    assert len({thread for _, thread, _ in seen} - {threading.get_ident()}) == 1


def test_a_reader_that_is_closed_waits_neither_for_its_pipe_nor_for_space() -> None:
    reading, writing = os.pipe()
    bench = Bench(FileLines(reading, "pipe", "replace"))
    os.write(writing, b"a\nb\nc")
    assert bench.take() == ["a", "b"]
    bench.close()
    assert not bench.reader._thread.is_alive()
    os.close(reading)
    os.close(writing)


def test_a_pipe_is_read_to_its_end_and_a_file_that_cannot_be_read_is_named() -> None:
    reading, writing = os.pipe()
    with closing(Bench(FileLines(reading, "pipe", "replace"))) as bench:
        threading.Thread(target=lambda: [os.write(writing, b"0123456789\n" * 100_000), os.close(writing)]).start()
        assert bench.take_all() == ["0123456789"] * 100_000
    os.close(reading)
    with (
        open(os.devnull, "wb") as null,
        closing(Bench(FileLines(null.fileno(), "it", "replace"))) as bench,
        pytest.raises(SourceError, match="Cannot read it: Bad file descriptor"),
    ):
        bench.take()


def test_an_iterable_that_blocks_is_left_behind() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def blocking() -> Iterator[str]:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)
        yield "late"

    bench = Bench(blocking())
    assert begun.wait(WAIT_SECONDS)
    bench.close()
    assert bench.reader._thread.is_alive()
    go_on.set()
    bench.reader._thread.join(WAIT_SECONDS)
    assert not bench.reader._thread.is_alive()

"""A thread reads the launcher's lines, only as far as they are wanted, whatever their source does."""

import contextvars
import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.line_reader import AHEAD_BYTES, LineReader
from megaflow.job.launcher.inputs.pulled_source import PulledLines
from tests.bench import WAIT_SECONDS
from tests.job.launcher.reading import ReaderBench


def test_all_lines_come_in_order_without_their_ends() -> None:
    lines = [f"line {number}\n" for number in range(100_000)]
    with closing(ReaderBench(lines)) as bench:
        assert bench.take_all() == [line[:-1] for line in lines]
    with closing(ReaderBench(["a\n", "b\r\n", "", "c"])) as bench:
        assert bench.take_all() == ["a", "b", "", "c"]


@pytest.mark.parametrize("line", ["", "x\n", "x" * 1000])
def test_an_iterable_is_pulled_no_further_than_it_may(line: str) -> None:
    pulled = taken = 0

    def endless() -> Iterator[str]:
        nonlocal pulled
        while True:
            pulled += 1
            yield line

    with closing(ReaderBench(endless())) as bench:
        limit = AHEAD_BYTES // (len(line.rstrip()) + 1) + 2
        for _ in range(20):
            taken += len(bench.take() or [])
            assert taken <= pulled <= taken + limit
    assert not bench.is_running() and pulled <= taken + limit


def test_the_end_is_noticed_though_it_comes_while_the_loop_looks() -> None:
    class EndingReader(LineReader):
        """A reader that ends just after the loop has first looked whether it has ended."""

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

    with closing(ReaderBench(slow())) as bench:
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

    with closing(ReaderBench(broken())) as bench:
        assert bench.take() == ["a"]
        with pytest.raises(KeyError, match="mine") as raised:
            bench.take()
    assert raised.traceback[-1].name == "broken"


def test_what_is_no_text_is_refused_by_its_type() -> None:
    with closing(ReaderBench([b"x"])) as bench, pytest.raises(UsageError, match=r"b'x' \(bytes\)"):
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

    with closing(ReaderBench(Source())) as bench:
        bench.take_all()
    assert {(what, context) for what, _, context in seen} == {("iter", "me"), ("next", "me")}
    assert len({thread for _, thread, _ in seen} - {threading.get_ident()}) == 1


def test_a_reader_that_is_closed_waits_neither_for_its_pipe_nor_for_space() -> None:
    reading, writing = os.pipe()
    bench = ReaderBench(FileLines(reading, "pipe", "replace"))
    os.write(writing, b"a\nb\nc")
    assert bench.take() == ["a", "b"]
    bench.close()
    assert not bench.is_running()
    os.close(reading)
    os.close(writing)


def test_a_pipe_is_read_to_its_end_and_a_file_that_cannot_be_read_is_named() -> None:
    reading, writing = os.pipe()
    with closing(ReaderBench(FileLines(reading, "pipe", "replace"))) as bench:
        threading.Thread(target=lambda: [os.write(writing, b"0123456789\n" * 100_000), os.close(writing)]).start()
        assert bench.take_all() == ["0123456789"] * 100_000
    os.close(reading)
    with (
        open(os.devnull, "wb") as null,
        closing(ReaderBench(FileLines(null.fileno(), "it", "replace"))) as bench,
        pytest.raises(SourceError, match="Cannot read it: Bad file descriptor"),
    ):
        bench.take()


def test_an_iterable_that_blocks_is_left_behind() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def blocking() -> Iterator[str]:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)
        yield "late"

    bench = ReaderBench(blocking())
    assert begun.wait(WAIT_SECONDS)
    bench.close()
    assert bench.is_running()
    go_on.set()
    bench.join()

"""Several workers of a process print whole lines, each with the mark of its worker."""

import io
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.launcher.processes.printed_lines import unmarked
from megaflow.job.log_records import LogPlace, places
from megaflow.job.worker.process.worker_text import LINE_CHARACTERS_MAX, WorkerText


def stream(**more: Any) -> tuple[WorkerText, io.BytesIO]:
    written = io.BytesIO()
    written.close = lambda: None  # type: ignore[method-assign]
    return WorkerText(io.TextIOWrapper(written, encoding="ascii"), **more), written


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the thread of the tests run no worker; an earlier test may have run one."""
    monkeypatch.setattr(places, "here", LogPlace())


def in_worker(index: int, function: Any) -> None:
    """Call a function on a thread that runs a worker."""

    def run() -> None:
        places.here = LogPlace(worker=index)
        function()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def lines_of(written: io.BytesIO) -> list[tuple[int | None, str]]:
    *lines, rest = written.getvalue().split(b"\n")
    assert rest == b""
    return [(worker, text.decode()) for worker, text in map(unmarked, lines)]


def test_lines_of_threads_do_not_mix() -> None:
    text, written = stream()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        def talk(worker: int) -> None:
            places.here = LogPlace(worker=worker)
            for number in range(2000):
                print("saw", number, "é" * worker, file=text)

        threads = [threading.Thread(target=talk, args=(worker,)) for worker in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    lines = lines_of(written)
    for worker in range(3):
        right = [f"saw {number} " + "\\xe9" * worker for number in range(2000)]
        assert [line for each, line in lines if each == worker] == right
    assert len(lines) == 6000


def test_a_flush_shows_an_incomplete_line_at_once() -> None:
    text, written = stream()
    in_worker(1, lambda: print("half", end="", file=text, flush=True))
    assert written.getvalue() == b"\x1e1\x1ehalf"
    in_worker(2, lambda: print("other", file=text))
    assert lines_of(written) == [(1, "half"), (2, "other")]


def test_an_open_line_is_continued_by_its_thread() -> None:
    text, written = stream()

    def talk() -> None:
        for part in ("a", "b", "c\n", "d\n"):
            print(part, end="", file=text, flush=True)

    in_worker(1, talk)
    assert lines_of(written) == [(1, "abc"), (1, "d")]


def test_the_end_completes_all_lines() -> None:
    text, written = stream()
    in_worker(1, lambda: print("half", end="", file=text, flush=True))
    in_worker(2, lambda: print("begun", end="", file=text))
    text.end_lines()
    text.flush()
    assert lines_of(written) == [(1, "half"), (2, "begun")]


def test_a_line_has_a_bound_and_other_threads_have_no_mark() -> None:
    text, written = stream()
    print("x" * (LINE_CHARACTERS_MAX + 1), "y", file=text)
    assert lines_of(written) == [(None, "x" * (LINE_CHARACTERS_MAX + 1)), (None, " y")]


def test_incomplete_lines_can_be_held() -> None:
    text, written = stream(render=lambda line, worker: f"<{line}>", holds=True)
    print("a", end="", file=text, flush=True)
    assert written.getvalue() == b""
    print("b", file=text)
    assert written.getvalue() == b"<ab>\n"


def test_a_record_of_logging_does_not_continue_a_printed_line() -> None:
    text, written = stream(render=lambda line, worker: line if line.startswith("\x1e") else f"<{line}>", holds=True)
    print("begun", end=" ", file=text)
    text.write("\x1e{record}\n")
    print("ended", file=text)
    assert written.getvalue() == b"\x1e{record}\n<begun ended>\n"


def test_a_long_line_is_followed_by_no_empty_line() -> None:
    text, written = stream()
    print("x" * (LINE_CHARACTERS_MAX + 1), file=text)
    print(file=text)
    print("y", file=text)
    assert lines_of(written) == [(None, "x" * (LINE_CHARACTERS_MAX + 1)), (None, ""), (None, "y")]


@given(st.lists(st.text(alphabet="ab\n", max_size=6), max_size=8), st.booleans())
def test_the_text_stays_the_same(pieces: list[str], flushes: bool) -> None:
    text, written = stream()
    for piece in pieces:
        print(piece, end="", file=text, flush=flushes)
    text.end_lines()
    text.flush()
    whole = "".join(pieces)
    assert written.getvalue().decode() == whole + "\n" * bool(whole and not whole.endswith("\n"))

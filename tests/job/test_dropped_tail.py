"""The end of what a process could not print survives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.dropped_tail import TAIL_BYTES, DroppedTail


@pytest.fixture
def tail() -> Iterator[DroppedTail]:
    tail = DroppedTail()
    yield tail
    tail.close()


@given(st.lists(st.tuples(st.integers(0, 3 * TAIL_BYTES), st.booleans()), max_size=8))
def test_it_is_the_end_of_all_that_was_added(pieces: list[tuple[int, bool]]) -> None:
    tail, right = DroppedTail(), b""
    for number, (length, forgets) in enumerate(pieces):
        if forgets:
            tail.forget()
            right = b""
        piece = b"".join(b"%d,%d\n" % (number, at) for at in range(length // 6))
        tail.add(piece)
        right += piece
    data, before = DroppedTail(tail.file).read()
    tail.close()
    assert data == right[-TAIL_BYTES:] and before == right.count(b"\n") - data.count(b"\n")


def test_a_killed_process_leaves_it(tail: DroppedTail) -> None:
    code = (
        "import os, sys; from megaflow.job.dropped_tail import DroppedTail\n"
        "DroppedTail(int(sys.argv[1])).add(b'last words\\n'); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(tail.file)]
    done = subprocess.run(command, pass_fds=[tail.file], timeout=180, check=False)
    assert done.returncode == -signal.SIGKILL and tail.read() == (b"last words\n", 0)


def test_an_empty_one_is_empty(tail: DroppedTail) -> None:
    assert tail.read() == (b"", 0) and os.fstat(tail.file).st_size == 0

"""If standard error is not read, writes wait for a limited time. Then they are dropped and counted."""

import io
import os
import pty
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from megaflow.job.patient_stream import PatientFile, dropped_text, has_room, patient

SHORT_SECONDS = 0.01
FILES = {"pipe": os.pipe, "terminal": pty.openpty, "socket": lambda: [each.detach() for each in socket.socketpair()]}


@pytest.fixture(params=FILES)
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The reading and the writing end of each kind of file that can be full."""
    reading, writing = FILES[request.param]()
    os.set_blocking(reading, False)
    yield reading, writing
    for end in (reading, writing):
        os.close(end)


def read_all(reading: int) -> str:
    found = b""
    with suppress(BlockingIOError):
        while data := os.read(reading, 65536):
            found += data
    return found.decode().replace("\r\n", "\n")  # a terminal adds them


def test_unread_lines_are_dropped_and_counted(ends: tuple[int, int]) -> None:
    reading, writing = ends
    with open(writing, "w", closefd=False) as inherited:
        stream = patient(inherited, SHORT_SECONDS)
        lines = [f"line {number} {'x' * 500}\n" for number in range(2000)]
        for line in lines:
            stream.write(line)
        before = read_all(reading)
        stream.write("read again\n")
        after = read_all(reading)
    whole = before.count("\n")
    assert 0 < whole < len(lines) and before.splitlines()[:whole] == [line[:-1] for line in lines[:whole]]
    assert after.lstrip("\n") == f"{dropped_text(len(lines) - whole)}read again\n"
    assert after.startswith("\n") is (not before.endswith("\n"))


def test_a_reader_that_is_slow_gets_everything(ends: tuple[int, int]) -> None:
    reading, writing = ends
    with open(writing, "w", closefd=False) as inherited:
        stream = patient(inherited, SHORT_SECONDS)
        text = "".join(read_all(reading) * (stream.write(f"{number}\n") > 0) for number in range(100))
    assert (text + read_all(reading)).split() == [str(number) for number in range(100)]


def test_other_writers_of_the_file_still_block() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "w") as inherited:
        stream = patient(inherited, SHORT_SECONDS)
        assert os.get_blocking(writing) and os.get_blocking(stream.fileno()) and stream.fileno() == writing


def test_a_file_that_cannot_be_opened_again_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("megaflow.job.patient_stream.OPEN_FILES", str(tmp_path))
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb"), open(writing, "w") as inherited:
        stream = patient(inherited, SHORT_SECONDS)
        for _ in range(100):
            stream.write("x" * 1000 + "\n")
        assert 60_000 <= len(read_all(reading)) <= 65_536


def test_a_closed_reader_fails_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as inherited:
        stream = patient(inherited)
        stream.write("nobody\nreads\n")
        raw = stream.buffer.raw  # type: ignore[attr-defined]
        assert isinstance(raw, PatientFile) and raw.dropped == 2


def test_regular_files_and_streams_in_memory_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "log", "w") as file:
        assert patient(file) is file
    memory = io.StringIO()
    assert patient(memory) is memory and has_room(memory)


def test_room_is_seen() -> None:
    reading, writing = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        stream = stack.enter_context(open(writing, "w"))
        assert has_room(stream, 0.0)
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        assert not has_room(stream, SHORT_SECONDS)

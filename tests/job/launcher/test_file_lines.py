"""Lines of pipes are cut and decoded like those of files, and refused where they are not text."""

import bz2
import gzip
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import SourceError
from megaflow.job.formats.text_lines import BYTE_ORDER_MARK, Text, lines_of, restored, without_marks
from megaflow.job.launcher.inputs.file_lines import FileLines, TextSplitter
from megaflow.job.launcher.processes.wakeups import Wakeup


@given(st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"a", b"\r").replace(b"b", b"\n")), max_size=12))
def test_however_the_bytes_arrive_the_lines_are_those_of_the_whole(parts: list[bytes]) -> None:
    splitter = TextSplitter(Text("input", "replace"))
    lines = [line for part in parts for line in splitter.feed(part)] + splitter.end()
    assert without_marks(lines) == lines_of(b"".join(parts).removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace"))


def test_a_byte_order_mark_before_the_first_line_is_dropped() -> None:
    splitter = TextSplitter(Text("input", "replace"))
    assert splitter.feed(BYTE_ORDER_MARK[:2]) == []
    assert splitter.feed(BYTE_ORDER_MARK[2:] + b"a\n" + BYTE_ORDER_MARK) == ["a"]
    assert splitter.end() == ["\ufeff"]


@given(st.text(alphabet="aé€\r\n\u2028", max_size=40), st.integers(1, 5))
def test_a_character_cut_in_two_is_whole_again(text: str, size: int) -> None:
    data = text.encode()
    splitter = TextSplitter(Text("input"))
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    lines += splitter.end()
    assert without_marks(lines) == lines_of(text)
    whole = "".join(map(restored, lines))
    assert whole == (text if not text or text.endswith(("\n", "\r")) else text + "\n")


def test_invalid_text_is_reported_with_its_byte_if_wanted() -> None:
    splitter = TextSplitter(Text("standard input"))
    assert splitter.feed(b"good\nmore") == ["good"]
    with pytest.raises(SourceError, match=r"Line 2 of standard input is not UTF-8: byte 10 is 0xff \("):
        splitter.feed(b" \xff\n")
    assert TextSplitter(Text("input", "replace")).feed(b"\xff\n") == ["\ufffd"]


def test_a_pipe_is_waited_for_until_it_has_something_ends_or_nobody_wants_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    stopped = Wakeup()
    try:
        pipe = FileLines(reader, "pipe", "replace")
        os.write(writer, b"a\nb")
        assert pipe.wait(stopped) and pipe.read() == ["a"] and not pipe.done
        stopped.wake()
        assert not pipe.wait(stopped)
        stopped.clear()
        os.close(writer)
        assert pipe.wait(stopped) and pipe.read() == ["b"] and pipe.done
    finally:
        os.close(reader)
    (tmp_path / "f").write_bytes(b"x\n")
    for path, read in ((str(tmp_path / "f"), ["x"]), (os.devnull, [])):
        with open(path, "rb") as file:
            lines, got = FileLines(file.fileno(), path, "replace"), []
            while not lines.done and lines.wait(stopped):
                got += lines.read()
            assert got == read
    stopped.close()


class Pipe:
    """A pipe from which lines are read."""

    def __init__(self, **options: Any) -> None:
        self._reading, self._writing = os.pipe()
        self.lines = FileLines(self._reading, "standard input", **options)

    def read(self, *parts: bytes) -> list[str]:
        """Write these bytes part by part, return the lines read, and close the pipe."""
        try:
            found = []
            for part in parts:
                os.write(self._writing, part)
                found += self.lines.read()
            os.close(self._writing)
            while not self.lines.done:
                found += self.lines.read()
            return found
        finally:
            os.close(self._reading)


TEXT = "\ufeffRené\r\nOrléans\n"


@pytest.mark.parametrize(
    ("encoding", "given_"), [("utf-16-le", ""), ("utf-16-be", ""), ("utf-32-le", ""), ("utf-16-le", "utf-16-le")]
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_pipe_of_utf_16_is_decoded_as_a_stream(encoding: str, given_: str, size: int) -> None:
    data = TEXT.encode(encoding)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert without_marks(Pipe(encoding=given_).read(*parts)) == ["René", "Orléans"]


def test_a_pipe_is_decoded_by_the_named_encoding() -> None:
    assert Pipe(encoding="iso8859-1").read(b"Ren\xe9\n") == ["René"]
    with pytest.raises(SourceError, match=r"Line 1 of standard input is not UTF-8: byte 3 is .*-\?encoding=latin-1"):
        Pipe().read(b"Ren\xe9\n")
    with pytest.raises(SourceError, match="Line 3 of standard input is not UTF-8: byte 8 is 0xe9"):
        Pipe().read(b"one\n", b"two\n\xe9\n")
    with pytest.raises(SourceError, match="Line 2 of standard input is not UTF-16-LE: byte 4 is 0x00"):
        Pipe(encoding="utf-16-le").read("a\n".encode("utf-16-le"), b"\x00\xd8a\x00")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(b"a\n"), "compressed by gzip.*zcat FILE"), (bz2.compress(b"a\n"), "compressed by bzip2.*bzcat"),
        (lzma.compress(b"a\n"), "compressed by xz.*xzcat"), (b"PK\x03\x04aa", "a ZIP archive"),
        ("ab,cd\n".encode("utf-16-be"), "UTF-16 without a byte order mark.*encoding=utf-16-be"),
    ],
    ids=["gzip", "bzip2", "xz", "zip", "utf-16-be"],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 100])
def test_a_pipe_that_is_no_text_is_refused(data: bytes, why: str, size: int) -> None:
    if size == 1 and "UTF-16" in why:
        size = 12  # told by many bytes
    with pytest.raises(SourceError, match=f"Cannot read standard input as lines: it is .*{why}"):
        Pipe().read(*(data[start : start + size] for start in range(0, len(data), size)))


@pytest.mark.parametrize("encoding", ["", "utf-16-le"])
def test_what_a_pipe_has_replaced_is_counted(encoding: str) -> None:
    told: list[str] = []
    pipe = Pipe(errors="replace", encoding=encoding)
    pipe.lines.replaced.tell = lambda about, text: told.append(text)
    bad = b"\x00\xd8" if encoding else b"\xff"
    line = "a".encode(encoding or "utf-8") + bad + "\n".encode(encoding or "utf-8")
    assert pipe.read(line, line + line) == ["a\ufffd"] * 3
    assert pipe.lines.replaced.counts == {"": 3} and len(told) == 1

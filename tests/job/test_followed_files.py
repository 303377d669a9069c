"""Files grow and are renamed, truncated and removed. Each line is read once, in order."""

import errno
import gzip
import os
import socket
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megaflow.connect.source_protocol import Gone, Idle, NotHere, Source
from megaflow.control.wording import NULS_LEFT_OUT
from megaflow.errors import SourceError, UsageError
from megaflow.job.files import followed_files, growing_file
from megaflow.job.files.followed_files import FollowedFile, FollowedFiles
from megaflow.job.formats.csv_format import Csv
from megaflow.job.formats.record_format import LINES, RecordFormat
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.job.launcher.run.launch import find_followed
from tests.job.reading import Counted
from tests.rights import without_rights
from tests.words import says

CASES = Path(__file__).parent.parent / "cases"
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIND_SECONDS", "POLL_SECONDS"):
        for module in (followed_files, growing_file):
            monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(growing_file, "DELETED_SECONDS", 0.0)


class Bench:
    """Reads the files of a pattern, as one worker of a job does."""

    def __init__(self, pattern: object, **more: Any) -> None:
        self.source = FollowedFiles(str(pattern), **more)
        self.readers: dict[int, FollowedFile] = {}
        self.positions: dict[int, Any] = {}
        self.staying: set[int] = set()

    def read(self, limit: int = 100) -> list[Any]:
        """Return all that can be read now, file by file."""
        records = []
        for inode in self.source.discover().partitions:
            if inode not in self.readers:
                self.readers[inode] = self.source.open(inode, self.positions.get(inode))
        for inode, reader in [*self.readers.items()]:
            while not isinstance(answer := reader.read(limit), Idle):
                if isinstance(answer, Gone):
                    del self.readers[inode]
                    self.positions.pop(inode, None)
                    self.staying.discard(inode)
                    break
                if isinstance(answer, NotHere):
                    if inode in self.staying:
                        break
                    self.staying.add(inode)
                    reader.stay()  # there is no other process
                    continue
                assert len(answer[0]) <= limit
                records += answer[0]
                self.positions[inode] = answer[1]
        return records

    def begin_anew(self, format: RecordFormat = LINES) -> None:
        """Let other readers continue from the positions."""
        for reader in self.readers.values():
            reader.close()
        self.source = FollowedFiles(self.source.pattern, format=format)
        self.staying.clear()
        self.readers = {inode: self.source.open(inode, position) for inode, position in self.positions.items()}


def append(path: Path, text: str) -> None:
    with path.open("a", newline="") as file:
        file.write(text)


def test_lines_are_read_as_they_come_each_once_its_end_is_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "*.log")
    assert isinstance(bench.source, Source) and bench.read() == []
    append(tmp_path / "a.log", "\ufeffone\ntw")
    assert bench.read() == ["one"] and bench.read() == []
    append(tmp_path / "a.log", "o\r")
    assert bench.read() == [], "\\n may follow"
    append(tmp_path / "a.log", "\n\nthr")
    append(tmp_path / "b.log", "new\n")
    assert bench.read() == ["two", "", "new"]
    append(tmp_path / "a.log", "ee\n")
    assert bench.read() == ["three"]


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_beginning(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "app.log*"), tmp_path / "app.log"
    append(log, "1\n2\n")
    assert bench.read() == ["1", "2"]
    append(log, "3\n")
    log.rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log.1", "4\n")  # by the process that still has it open
    append(log, "5\n")
    (tmp_path / "app.log.2.gz").write_bytes(b"what was rotated before")
    assert sorted(bench.read()) == ["3", "4", "5"] and bench.read() == []
    bench.begin_anew()
    append(log, "6\n")
    assert bench.read() == ["6"]


@pytest.mark.parametrize("text", ["", "9\n", "9\n8\n7\n6\n", "1\n2\n4\n5\n6\n"])
def test_a_truncated_file_begins_anew_however_long_it_is_by_then(tmp_path: Path, text: str) -> None:
    bench, log = Bench(tmp_path / "app.log"), tmp_path / "app.log"
    append(log, "1\n2\n3\n")
    assert len(bench.read()) == 3
    log.write_text(text)
    assert bench.read() == text.split() and bench.read() == []
    bench.begin_anew()
    log.write_text("0\n" + text)
    assert bench.read() == ["0", *text.split()], "also if nobody looked when it was"


def test_a_removed_file_is_read_with_its_last_line_and_its_descriptor_is_closed(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "app.log"), tmp_path / "app.log"
    append(log, "1\nlast")
    assert bench.read() == ["1"]
    append(log, " one")
    log.unlink()
    [reader] = bench.readers.values()
    assert [*bench.read(), *bench.read()] == ["last one"] and bench.read() == []
    assert not reader._is_open and not (bench.readers or bench.positions), "nothing is left to look for"


def test_nuls_before_a_line_are_left_out_once_the_line_ends(tmp_path: Path) -> None:
    counted, log = Counted(), tmp_path / "app.log"
    bench = Bench(log, count=counted.count)
    append(log, "zero\n")
    assert bench.read() == ["zero"]
    log.write_bytes((CASES / "nul_start.log").read_bytes())
    assert bench.read() == ["first", "second"] and counted.kinds == {NULS_LEFT_OUT: 64}
    append(log, "third\n" + "\0" * 300_000)
    assert bench.read() == ["third"] and bench.read() == []
    append(log, "\0" * 10 + "fou")
    assert bench.read() == [] and counted.kinds == {NULS_LEFT_OUT: 64}, "the line has no end yet"
    bench.begin_anew()
    bench.source.count = counted.count
    append(log, "rth\0\nfi\0fth\n\0\0\n\r\n\0last\r\n")
    assert bench.read() == ["fourth\0", "fi\0fth", "", "", "last"]
    assert counted.kinds == {NULS_LEFT_OUT: 64 + 300_010 + 2 + 1}


def test_many_nuls_are_not_kept_in_memory(tmp_path: Path) -> None:
    counted, log, size = Counted(), tmp_path / "app.log", 200 << 20
    bench = Bench(log, count=counted.count)
    with log.open("wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(b"line\n")
    tracemalloc.start()
    try:
        found = [each for _ in range(9) for each in bench.read()]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert found == ["line"] and counted.kinds == {NULS_LEFT_OUT: size}


def test_a_table_after_nuls_has_its_header(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "a.csv", format=Csv()), tmp_path / "a.csv"
    append(log, "\0" * 5_000 + "a")
    assert bench.read() == []
    append(log, ",b\n")
    assert bench.read() == []
    append(log, '1,2\n3,"4\n\0"\n\0\0\0')
    assert bench.read() == [{"a": "1", "b": "2"}, {"a": "3", "b": "4\n\0"}]
    append(log, "5,6\n")
    assert bench.read() == [{"a": "5", "b": "6"}]
    bench.begin_anew(Csv())
    append(log, "7,8\n")
    assert bench.read() == [{"a": "7", "b": "8"}]


class Reserved:
    """A log whose end is space for later lines: NULs, which its program fills from the front."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.written = path, 0
        path.touch()
        self.reserve(size)

    def reserve(self, size: int) -> None:
        os.truncate(self.path, size)

    def write(self, text: str) -> None:
        """Write at the place of the first NUL."""
        with self.path.open("r+b") as file:
            file.seek(self.written)
            file.write(text.encode())
        self.written += len(text)

    def cut(self) -> None:
        """Remove the space."""
        os.truncate(self.path, self.written)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("end", ["kept", "filled", "cut", "removed"])
def test_lines_in_reserved_space_are_read_once(tmp_path: Path, end: str, anew: bool) -> None:
    counted, lost = Counted(), list[Any]()
    log = Reserved(tmp_path / "app.log", 65_536)
    bench = Bench(log.path, count=counted.count, lose=lambda *each: lost.append(each))
    written, read = list[str](), bench.read()
    for number in range(40):
        log.write(f"line {number}\nhalf a ")
        written.append(f"line {number}" if not number else f"half a line {number}")
        read += bench.read()
        assert read == written
        if anew:
            [(inode, position)] = bench.positions.items()
            bench.source.open(inode, position).look()
            bench.readers.pop(inode).close()
    log.write("line\n")
    if end == "filled":
        log.write("x" * (65_535 - log.written) + "\nafter\n")
        written += ["half a line", "x" * (65_535 - len("".join(written)) - 40 - 12), "after"]
    else:
        written.append("half a line")
    if end == "cut":
        log.cut()
    read += bench.read()
    if end == "removed":
        log.path.unlink()
        read += bench.read()
    if anew:
        for inode, position in bench.positions.items():
            bench.source.open(inode, position).look()
    assert read == written and lost == [] and not counted.kinds


def test_space_between_lines_may_still_be_filled(tmp_path: Path) -> None:
    counted, log = Counted(), Reserved(tmp_path / "app.log", 100_000)
    bench = Bench(log.path, count=counted.count)
    log.write("one\n")
    append(log.path, "la")
    assert bench.read() == ["one"] and bench.read() == [], "the last line has no end"
    log.write("two\n")
    assert bench.read() == ["two"]
    log.write("x" * 99_991 + "\n")
    append(log.path, "st\n")
    assert bench.read() == ["x" * 99_991, "last"] and not counted.kinds


def test_large_reserved_space_is_not_kept_in_memory(tmp_path: Path) -> None:
    log = Reserved(tmp_path / "app.log", 100 << 20)
    bench = Bench(log.path)
    log.write("one\ntw")
    tracemalloc.start()
    try:
        assert [each for _ in range(12) for each in bench.read()] == ["one"]
        log.write("o\n")
        assert bench.read() == ["two"]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_lines_after_much_abandoned_space_are_read(tmp_path: Path) -> None:
    counted, size = Counted(), 70 << 20
    log = Reserved(tmp_path / "app.log", size)
    bench = Bench(log.path, count=counted.count)
    log.write("before a crash\n")
    assert bench.read() == ["before a crash"]
    reserved, log.written = log.written, size
    log.reserve(2 * size)
    log.write("after\n")
    found = [each for _ in range(9) for each in bench.read()]
    assert found == ["after"] and counted.kinds == {NULS_LEFT_OUT: size - reserved}


def test_reserved_space_of_a_table_is_no_part_of_its_header(tmp_path: Path) -> None:
    log = Reserved(tmp_path / "a.csv", 9_000)
    bench = Bench(log.path, format=Csv())
    for text in ("a", ",b", "\n", "1,2\n3,"):
        log.write(text)
        rows = bench.read()
    assert rows == [{"a": "1", "b": "2"}]
    log.write('"4\n5"\n')
    bench.begin_anew(Csv())
    assert bench.read() == [{"a": "3", "b": "4\n5"}]


def test_files_with_reserved_space_stay_open(tmp_path: Path) -> None:
    log = Reserved(tmp_path / "app.log", 9_000)
    bench = Bench(log.path)
    log.write("one\n")
    assert bench.read() == ["one"] and bench.read() == []
    [reader] = bench.readers.values()
    assert reader._held.file >= 0, "the times of a mapped file do not show that its space is filled"
    log.cut()
    assert bench.read() == [] and reader._held.file < 0


@pytest.mark.parametrize("anew", [False, True])
def test_files_that_replace_one_another_are_each_read(tmp_path: Path, anew: bool) -> None:
    bench, log, inodes = Bench(tmp_path / "app.log"), tmp_path / "app.log", list[int]()
    for _ in range(9):
        append(log, "the same line\n")
        inodes.append(log.stat().st_ino)
        assert bench.read() == ["the same line"]
        log.unlink()
        assert bench.read() == [] and bench.read() == []
        if anew:
            bench.begin_anew()
    if len({*inodes}) == len(inodes):
        pytest.skip("this file system does not reuse inodes at once")


def test_a_file_that_was_renamed_while_nobody_read_it_is_found_beside_where_it_was(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "app.log"), tmp_path / "app.log"
    append(log, "1\n2\n")
    assert bench.read(1) == ["1", "2"]
    append(log, "3\n")
    log.rename(tmp_path / "app.log.1")
    append(log, "4\n")
    bench.begin_anew()
    assert sorted(bench.read()) == ["3", "4"]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["line", "part", "read", "rotate", "remove", "truncate", "anew", "some"]), max_size=40))
def test_whatever_becomes_of_a_file_each_line_is_read_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    bench, log = Bench(folder / "*.log*"), folder / "app.log"
    log.touch()
    part, read, written = "", list[str](), list[str]()
    for number, step in enumerate(steps):
        if step == "line":
            append(log, f"{number}\n")
            written.append(f"{part}{number}")
            part = ""
        elif step == "part":
            append(log, f"{number}-")
            part += f"{number}-"
        elif step == "rotate":
            append(log, "\n" if part else "")
            written += [part] if part else []
            log.rename(folder / f"app.log.{number}")
            log.touch()
            part = ""
        elif step == "anew":
            bench.begin_anew()
        else:
            read += bench.read(2 if step == "some" else 100)
        if step in ("remove", "truncate"):
            append(log, "\n" if part else "")
            written += [part] if part else []
            part, read = "", read + bench.read()
            if step == "remove":
                log.unlink()
                read += bench.read() + bench.read()  # the reader closes it
            log.write_text(f"{number} anew\n")
            written.append(f"{number} anew")
    read += bench.read()
    assert sorted(read) == sorted(written)
    last = [line for line in written if line in read]
    assert len(read) == len(last)
    for reader in bench.readers.values():
        reader.close()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["line", "part", "read", "some", "reserve", "cut", "anew"]), max_size=40))
def test_lines_of_mapped_files_are_read_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    lost = list[Any]()
    bench = Bench(folder / "app.log", lose=lambda *each: lost.append(each))
    log = Reserved(folder / "app.log", 300)
    part, read, written = "", list[str](), list[str]()
    for number, step in enumerate(steps):
        if step == "line":
            log.write(f"{number}\n")
            written.append(f"{part}{number}")
            part = ""
        elif step == "part":
            log.write(f"{number}-")
            part += f"{number}-"
        elif step == "reserve":
            log.reserve(log.written + 300)
        elif step == "cut":
            log.cut()
        elif step == "anew":
            bench.begin_anew()
            bench.source.lose = lambda *each: lost.append(each)
        else:
            read += bench.read(2 if step == "some" else 100)
    read += bench.read()
    assert read == written and lost == []
    for reader in bench.readers.values():
        reader.close()


def test_what_cannot_be_parsed_is_named_by_its_file_and_line_and_each_file_has_its_own_columns(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "*.csv*", format=Csv()), tmp_path / "a.csv"
    append(log, "a,b\r\n1,2\r\n")
    assert bench.read() == [{"a": "1", "b": "2"}]
    append(log, "3,4\r\n")
    log.rename(tmp_path / "a.csv.1")
    append(log, "b,c\n5,6\n")
    assert sorted(bench.read(), key=str) == [{"a": "3", "b": "4"}, {"b": "5", "c": "6"}]
    log.write_text("d,e\n7,8\n")
    assert bench.read() == [{"d": "7", "e": "8"}]
    append(log, "\n9,10\n9\n")
    with pytest.raises(SourceError, match=rf"line 5 of '{log}' is not a row of CSV: it has 1 field "):
        bench.read()


def test_an_open_row_waits_for_its_end(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "*.csv", format=Csv(as_=tuple)), tmp_path / "a.csv"
    append(log, "a,\"b")
    assert bench.read() == []
    append(log, "\nc\"\n1,2\n3,\"x\r\n")
    assert bench.read() == [("1", "2")]
    append(log, "y\n")
    assert bench.read() == []
    bench.begin_anew(Csv(as_=tuple))
    append(log, "z\"\n4,5\n")
    assert bench.read() == [("3", "x\r\ny\nz"), ("4", "5")] and bench.read() == []


def test_an_open_row_waits_for_the_longest_row(tmp_path: Path) -> None:
    told = list[str]()
    format = Csv(lambda text: told.append(text()), as_=tuple, bytes_max=1_200_000)
    bench, log = Bench(tmp_path / "*.csv", format=format), tmp_path / "a.csv"
    append(log, "a,b\n1,\"2\n")
    for number in range(12):
        append(log, f"{number:099},x\n" * 1_000)
        rows = bench.read()
        assert bool(rows) is bool(told) is (number >= 11)
    assert rows[-1] == (f"{11:099}", "x") and len(told) == 1 and "line 2 of" in told[0]
    assert rows[0] == (f"{2:099}", "x"), "the rows behind a quarter of it are read"
    append(log, "3,\"" + f"{1:099}\n" * 11_000)
    assert bench.read() == []
    append(log, "4\"\n")
    rows = [row for _ in range(9) for row in bench.read()]  # each call reads twice as much
    is_right = rows == [("3", f"{1:099}\n" * 11_000 + "4")]
    assert is_right, "this quote has an end"


def test_a_removed_file_with_half_a_header_is_let_go(tmp_path: Path) -> None:
    for text in ("a,\"b", "a,b", "a,\"b\n"):
        log = tmp_path / "a.csv"
        bench = Bench(log, format=Csv())
        append(log, text)
        assert bench.read() == []
        [reader] = bench.readers.values()
        log.unlink()
        for _ in range(3):
            assert bench.read() == []
        assert not reader._is_open and not bench.readers
        append(log, "c,d\n1,2\n")
        assert bench.read() == [{"c": "1", "d": "2"}], "the next file of this name is read"
        log.unlink()


def test_a_removed_file_of_one_row_is_read(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "a.csv", format=Csv(header=False, as_=tuple)), tmp_path / "a.csv"
    append(log, "a,b\n")
    assert bench.read() == [], "the next row may say that this one is faulty"
    log.unlink()
    assert bench.read() == [("a", "b")] and bench.read() == []


def test_a_fault_of_a_followed_file_is_counted_once(tmp_path: Path) -> None:
    told = list[str]()

    def format() -> Csv:
        return Csv(lambda text: told.append(text()), as_=tuple)

    bench, log = Bench(tmp_path / "*.csv", format=format()), tmp_path / "a.csv"
    append(log, "a,b\n")
    for number in range(60):
        append(log, f"{number},x\n\n" + "faulty\n" * (number % 3))
    read = list[Any]()
    for limit in range(1, 40):
        for inode in bench.source.discover().partitions:  # one batch, then another worker continues
            reader = bench.source.open(inode, bench.positions.get(inode))
            answer = reader.read(limit)
            if not isinstance(answer, Idle):
                read += answer[0]
                bench.positions[inode] = answer[1]
            reader.close()
    bench.begin_anew(format())
    read += bench.read()
    assert read == [(str(number), "x") for number in range(60)] and len(told) == 60


def test_what_is_not_text_ends_the_job_if_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_bytes(b"fine\n\xff\n")
    with pytest.raises(SourceError, match=r"Line 2 of '.*app.log' is not UTF-8: byte 5 is 0xff.*encoding=latin-1'"):
        Bench(tmp_path / "app.log").read()
    replaced = ReplacedBytes()
    assert Bench(tmp_path / "app.log", errors="replace", replaced=replaced).read() == ["fine", "\ufffd"]
    assert replaced.counts == {"": 1}
    assert Bench(tmp_path / "app.log", encoding="iso8859-1").read() == ["fine", "\xff"]


@pytest.mark.parametrize(
    ("data", "why"),
    [("a\n".encode("utf-16"), "it is in UTF-16"), (b"PK\x03\x04aaaa\n", "a ZIP archive"),
     ("ab,cd\n".encode("utf-16-le"), "UTF-16 without a byte order mark")],
)  # fmt: skip
def test_a_followed_file_that_has_no_lines_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "app.log").write_bytes(data)
    with pytest.raises(SourceError, match=rf"app\.log'.*{why}"):
        Bench(tmp_path / "app.log").read()


def test_a_compressed_file_is_passed_over_and_reported(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "app.log.2").write_bytes(b"b\n")
    told: list[str] = []
    bench = Bench(tmp_path / "app.log*", tell=lambda about, text: told.append(text))
    assert bench.read() == ["b"] and bench.read() == []
    assert len(told) == 1 and "app.log' is compressed by gzip, so it cannot be followed" in told[0]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("-", "--follow: lines must name a file, folder or glob whose files grow, not '-'"),
        (["x"], "whose files grow, not"),
        ({"a": "spark:text:x"}, "whose files grow, not 'spark:text:x'"),
        ("x.log?unordered", r"--follow reads each file in order: leave \?unordered out"),
        ("x.gz", "is compressed, so it does not grow"),
        ({"9": "x"}, "must be a name"),
    ],
)
def test_what_does_not_grow_is_refused(lines: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_followed(lines)


@pytest.mark.parametrize("kind", ["named pipe", "socket", "device"])
def test_what_is_no_regular_file_is_not_followed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "named pipe":
        os.mkfifo("in put")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("in put")
    else:
        Path("in put").symlink_to("/dev/null")
    with pytest.raises(UsageError) as refused:
        find_followed({"a": "in put"})
    assert says(str(refused.value), "--follow", "'in put'", f"it is a {kind}", "'in put' | megaflow run … --lines -")
    Path("b.log").touch()
    assert FollowedFiles(f"{tmp_path}/*").discover().partitions == [Path("b.log").stat().st_ino]


def test_a_pattern_is_that_of_the_launchers_folder_and_need_not_match_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of")
    given = find_followed({"b": "logs/*.log", "a": Path("~/x")})
    assert given.names.followed == (("a", "/home/of/x", ""), ("b", f"{os.getcwd()}/logs/*.log", ""))
    assert given.names.lines == ("a", "b") and not find_followed("app.log").names.lines
    assert find_followed("app.log?encoding=latin-1").names.followed == (("", f"{tmp_path}/app.log", "iso8859-1"),)
    with pytest.raises(UsageError, match="Cannot follow files in UTF-16"):
        find_followed("app.log?encoding=utf-16")


LINES_OF_A_LOG = [f"line {number}" for number in range(15)]


def compress(path: Path, name: str = "app.log.1.gz") -> None:
    (path.parent / name).write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


class Interrupted(Bench):
    """A job that has read some lines of a log and ended."""

    def __init__(self, folder: Path, lines: int, **options: Any) -> None:
        self.lost: list[tuple[str, int]] = []
        self.log = folder / "app.log"
        super().__init__(self.log, lose=lambda path, size: self.lost.append((path, size)), **options)
        [inode] = self.source.discover().partitions
        reader = self.source.open(inode, None)
        self.seen: list[str] = []
        while len(self.seen) < lines:
            records, self.positions[inode] = reader.read(lines - len(self.seen))
            self.seen += records
        if not lines:
            records, self.positions[inode] = reader.read(1)
            assert not records, "the first position stands before the first line"
        reader.close()

    def go_on(self) -> list[Any]:
        """Read the rest."""
        source, self.readers = self.source, {}
        self.source = FollowedFiles(source.pattern, format=source.format, lose=source.lose, count=source.count)
        self.readers = {inode: self.source.open(inode, position) for inode, position in self.positions.items()}
        return self.read()


@pytest.mark.parametrize("lines", [0, 1, 10, 15])
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_rest_of_a_compressed_file_is_read_from_its_copy(lines: int, end: str, tmp_path: Path) -> None:
    append(tmp_path / "app.log", "\n".join(LINES_OF_A_LOG) + "\n")
    job = Interrupted(tmp_path, lines)
    append(job.log, "later" + end)
    compress(job.log)
    append(job.log, "new\n")
    assert sorted(job.go_on()) == sorted([*LINES_OF_A_LOG[lines:], "later", "new"]) and not job.lost
    assert job.go_on() == [], "a copy is read once"
    (tmp_path / "app.log.1.gz").unlink()
    assert job.go_on() == [] and not job.lost


def test_a_copy_is_read_on_where_reading_it_was_left(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "\n".join(LINES_OF_A_LOG) + "\n")
    job = Interrupted(tmp_path, 3)
    compress(job.log)
    [(inode, position)] = job.positions.items()
    read: list[str] = []
    for _ in range(12):
        reader = job.source.open(inode, position)
        records, position = reader.read(1)
        reader.close()
        read += records
    assert read == LINES_OF_A_LOG[3:] and not job.lost


def test_file_with_a_hole_in_what_was_read_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("".join(f"line {number:06}\n" for number in range(1000)))
    job = Bench(str(log))
    assert len(job.read()) == 1000
    with log.open("r+b") as file:  # as `fallocate --punch-hole`, which not all file systems offer
        file.write(bytes(8192))
    append(log, "new\n")
    assert job.read() == ["new"]
    append(log, "next\n")
    job.begin_anew()
    assert job.read() == ["next"]


def test_a_file_that_was_copied_compressed_and_truncated_is_read_whole(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "\n".join(LINES_OF_A_LOG) + "\n")
    job = Interrupted(tmp_path, 10)
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(job.log.read_bytes()))
    job.log.write_text("new\n")
    assert job.go_on() == [*LINES_OF_A_LOG[10:], "new"] and not job.lost


@pytest.mark.parametrize("truncated", [False, True])
def test_lines_that_are_gone_are_reported_with_file_and_number(truncated: bool, tmp_path: Path) -> None:
    append(tmp_path / "app.log", "\n".join(LINES_OF_A_LOG) + "\n")
    job = Interrupted(tmp_path, 10)
    job.log.unlink()
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(b"of another file\n" * 99))
    if truncated:
        job.log.write_text("")
        os.link(job.log, tmp_path / "held")
        job.positions = {job.log.stat().st_ino: position for position in job.positions.values()}
    assert job.go_on() == [] and job.lost == [(str(job.log), 5 * len("line 10\n"))]
    assert job.go_on() == [] and len(job.lost) == 1, "it is reported once"


def test_the_end_of_a_line_that_never_came_is_lost_as_well(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\ntw")
    job = Interrupted(tmp_path, 1)
    job.log.unlink()
    assert job.go_on() == [] and job.lost == [(str(job.log), 2)]


def test_growth_without_a_whole_line_is_in_the_position(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\n")
    job = Interrupted(tmp_path, 1)
    append(job.log, "two")
    assert job.go_on() == []
    job.log.unlink()
    assert job.go_on() == [] and job.lost == [(str(job.log), 3)]


def test_what_a_truncated_file_had_is_reported_while_it_is_read(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\ntw")
    told: list[str] = []
    bench = Bench(tmp_path / "app.log", tell=lambda about, text: told.append(text))
    assert bench.read() == ["one"]
    (tmp_path / "app.log").write_text("")
    assert bench.read() == [] and len(told) == 1 and says(told[0], "2 bytes", f"'{tmp_path}/app.log'")


def test_positions_of_the_first_stores_are_read(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "one\ntwo\n")
    job = Interrupted(tmp_path, 1)
    job.positions = {inode: position[:3] for inode, position in job.positions.items()}
    assert job.go_on() == ["two"]
    job.positions = {inode: position[:3] for inode, position in job.positions.items()}
    job.log.unlink()
    assert job.go_on() == [] and not job.lost, "nobody knows what it had"


def test_reserved_space_in_a_copy_is_no_loss(tmp_path: Path) -> None:
    counted = Counted()
    append(tmp_path / "app.log", "\n".join(LINES_OF_A_LOG) + "\n" + "\0" * 3_000)
    job = Interrupted(tmp_path, 10, count=counted.count)
    compress(job.log)
    assert job.go_on() == LINES_OF_A_LOG[10:] and job.go_on() == []
    assert not job.lost and not counted.kinds


def test_rows_of_a_copy_have_the_columns_of_its_head(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "a,b\n1,2\n3,4\n")
    job = Interrupted(tmp_path, 1, format=Csv())
    compress(job.log)
    assert job.go_on() == [{"a": "3", "b": "4"}]


def test_an_unfinished_first_row_that_is_gone_is_reported_once(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "a,\"b")
    job = Interrupted(tmp_path, 0, format=Csv())
    assert job.go_on() == []
    job.log.unlink()
    for _ in range(3):
        assert job.read() == []
    assert job.lost == [(str(job.log), 4)]
    assert job.go_on() == [] and len(job.lost) == 1


def test_a_new_file_that_no_process_finds_is_reported_and_read_if_it_comes(tmp_path: Path) -> None:
    told: dict[str, str] = {}
    source = FollowedFiles(f"{tmp_path}/*.log", tell=told.__setitem__)
    file, away = tmp_path / "a.log", tmp_path / "away"
    file.write_text("one\n")
    (inode,) = source.discover().partitions
    file.rename(away)
    reader = source.open(inode, None)
    assert isinstance(reader.read(9), NotHere) and told == {}
    reader.stay()
    assert isinstance(reader.read(9), Gone)
    assert says(told.popitem()[1], "*.log", str(inode), "removed or moved before it was opened", "no process")
    away.rename(file)
    assert [*source.discover().partitions] == [inode]
    records: list[str] = []
    reader = source.open(inode, None)
    while not isinstance(answer := reader.read(9), Idle | NotHere | Gone):
        records += answer[0]
    reader.close()
    assert records == ["one"] and told == {}


@pytest.mark.parametrize("is_open", [True, False])
def test_files_of_a_folder_that_is_away_keep_their_positions(tmp_path: Path, is_open: bool) -> None:
    folder, away = tmp_path / "logs", tmp_path / "away"
    folder.mkdir()
    bench = Bench(folder / "*.log")
    for name in "ab":
        append(folder / f"{name}.log", f"{name}1\n")
    assert bench.read() == ["a1", "b1"]
    folder.rename(away)
    if not is_open:
        bench.begin_anew()
    assert [each for _ in range(9) for each in bench.read()] == [] and len(bench.positions) == 2
    away.rename(folder)
    append(folder / "a.log", "a2\n")
    assert bench.read() == ["a2"]


def test_position_of_a_file_that_an_older_version_let_go_is_gone(tmp_path: Path) -> None:
    source = FollowedFiles(f"{tmp_path}/*.log")
    reader = source.open(7, (f"{tmp_path}/a.log", 0, "", None, ""))
    assert isinstance(reader.read(9), NotHere)
    reader.stay()
    assert isinstance(reader.read(9), Gone)


def test_removed_file_is_gone_for_another_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_file, "DELETED_SECONDS", 60.0)
    bench, log, other = Bench(tmp_path / "*.log"), tmp_path / "a.log", tmp_path / "b.log"
    append(log, "one\n")
    assert bench.read() == ["one"]
    log.unlink()
    assert bench.read() == []
    [(inode, position)] = bench.positions.items()
    assert position[5:] == ("", True), "its program may still write to it"
    append(other, "one\n")
    bench.positions = {other.stat().st_ino: position}
    bench.begin_anew()
    assert bench.read() == ["one"], "no file with its inode is the removed one"
    reader = bench.source.open(inode, position)
    other.rename(tmp_path / "away")
    assert isinstance(reader.read(9), Gone)


def test_file_that_was_removed_since_the_last_look_is_handed_on_as_such(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "*.log"), tmp_path / "a.log"
    append(log, "one\n")
    assert bench.read() == ["one"]
    [(inode, reader)], [position] = bench.readers.items(), bench.positions.values()
    assert reader.settled(position) == position and reader.settled(None) is None
    log.unlink()
    removed = reader.settled(position)
    reader.close()
    assert removed == (*position, "", True)
    assert reader.settled(position) == position, "it is not known any more"
    assert isinstance(bench.source.open(inode, removed).read(9), Gone)


def test_removed_compressed_file_is_closed(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path / "*"), tmp_path / "packed"
    log.write_bytes(gzip.compress(b"one\n"))
    assert bench.read() == []
    [reader] = bench.readers.values()
    log.unlink()
    assert bench.read() == [] and not reader._is_open and not bench.readers


class Denied:
    """A file of a pattern, a reader of it, and what was reported."""

    def __init__(self, folder: Path, text: str, position: Any = None) -> None:
        self.told: dict[str, str] = {}
        self.lost: list[tuple[str, int]] = []
        self.file = folder / "a.log"
        self.file.write_text(text)
        tell = self.told.__setitem__
        self.source = FollowedFiles(str(folder), tell=tell, lose=lambda *lost: self.lost.append(lost))
        self.inode = self.file.stat().st_ino
        self.reader = self.source.open(self.inode, None)

    def read(self) -> list[Any]:
        """Return all that can be read, and the answer after that."""
        records: list[Any] = []
        while isinstance(answer := self.reader.read(9), tuple):
            records += answer[0]
            self.position = answer[1]
        return [*records, answer]

    def lock(self, more: str = "") -> None:
        """Append to the file, and take the right to read it away."""
        self.file.chmod(0o600)
        append(self.file, more)
        self.file.chmod(0)

    def move(self) -> None:
        """Let another reader continue from the position."""
        self.reader.close()
        self.reader = self.source.open(self.inode, self.position)

    def is_missing(self, unread: int, why: str = "Permission denied") -> bool:
        with without_rights():
            *records, answer = self.read()
        assert isinstance(answer, NotHere) and not records, (records, answer)
        return says(answer.why, str(self.file), why) and (answer.unread, answer.is_held) == (unread, True)


def test_new_file_that_may_not_be_opened_is_read_elsewhere(tmp_path: Path) -> None:
    job = Denied(tmp_path, "one\ntwo\n")
    job.lock()
    assert job.is_missing(8) and job.told == {}
    job.reader.stay()
    assert job.is_missing(8) and says(*job.told.values(), str(job.file), "Permission denied", "no process")
    job.lock("three\n")
    assert job.is_missing(14), "it grows"
    job.file.chmod(0o600)
    assert job.read()[:-1] == ["one", "two", "three"] and job.lost == []


def test_file_that_may_not_be_opened_any_more_keeps_its_position(tmp_path: Path) -> None:
    job = Denied(tmp_path, "one\n")
    assert job.read()[:-1] == ["one"]
    job.lock()
    job.move()
    with without_rights():
        assert isinstance(job.read()[0], Idle), "nothing of it is unread"
    job.lock("two\n")
    assert job.is_missing(4)
    job.reader.stay()
    assert job.is_missing(4) and job.is_missing(4)
    job.file.chmod(0o600)
    job.move()
    assert job.read()[:-1] == ["two"] and job.lost == []


def test_quiet_file_that_may_not_be_opened_again_is_not_lost(tmp_path: Path) -> None:
    job = Denied(tmp_path, "one\n")
    assert job.read()[:-1] == ["one"]
    job.source.descriptors.close(job.reader._held, -1)  # for another file
    job.lock("two\n")
    assert all(job.is_missing(4) for _ in range(3))
    job.file.chmod(0o600)
    assert job.read()[:-1] == ["two"] and job.lost == []


@pytest.mark.parametrize("fails", ["pread", "fstat"])
def test_file_whose_handle_is_stale_is_read_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """It takes a network to make a handle stale, so the error is raised in place of the system's."""
    job = Denied(tmp_path, "one\n")
    assert job.read()[:-1] == ["one"]
    append(job.file, "two\n" * 9)
    answer = job.reader.read(1)
    assert isinstance(answer, tuple) and answer[0] == ["two"]
    job.position = answer[1]
    append(job.file, "three\n")

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, stale)
        *records, answer = job.read()
        assert isinstance(answer, NotHere) and says(answer.why, str(job.file), "Stale file handle"), answer
        assert records == ["two"] * 8 and (answer.unread, answer.is_held) == (6, True)
        assert isinstance(job.reader.read(9), NotHere)
    job.move()
    assert job.read()[:-1] == ["three"] and job.lost == []


def test_folder_that_may_not_be_searched_is_searched_elsewhere(tmp_path: Path) -> None:
    job = Denied(tmp_path, "one\n")
    tmp_path.chmod(0)
    with without_rights():
        [answer] = job.read()
    assert isinstance(answer, NotHere) and says(answer.why, str(tmp_path), "Permission denied"), answer
    assert (answer.unread, answer.is_held) == (None, True)
    tmp_path.chmod(0o700)
    assert job.read()[:-1] == ["one"] and job.lost == []


def test_closed_folder_is_reported_once_and_read_when_it_opens(tmp_path: Path) -> None:
    folders = tmp_path / "open", tmp_path / "closed"
    for folder in folders:
        folder.mkdir()
        (folder / "a.log").write_text(f"{folder.name}\n")
    told: list[str] = []
    job = Bench(f"{tmp_path}/*/*.log", tell=lambda about, text: told.append(text))
    folders[1].chmod(0)
    with without_rights():
        assert job.read() == ["open"] and job.read() == []
        assert len(told) == 1 and says(told[0], f"'{folders[1]}' cannot be searched", "Permission denied"), told
        folders[1].chmod(0o700)
        assert job.read() == ["closed"] and len(told) == 1


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_file_in_a_folder_that_was_closed_is_not_lost(tmp_path: Path, is_taken_over: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    job = Denied(folder, "one\n")
    job.source = FollowedFiles(f"{tmp_path}/*/*.log", lose=job.source.lose)
    job.position = None
    job.move()
    assert job.read()[:-1] == ["one"]
    append(job.file, "two\n")
    if is_taken_over:
        job.move()
    else:
        job.source.descriptors.close(job.reader._held, -1)  # for another file
    folder.chmod(0)
    for _ in range(3):
        with without_rights():
            [answer] = job.read()
        assert isinstance(answer, NotHere) and answer.is_held, answer
        assert says(answer.why, f"'{folder}' cannot be searched", "Permission denied")
        job.reader.stay()
    folder.chmod(0o700)
    assert job.read()[:-1] == ["two"] and job.lost == []


def test_position_of_a_file_that_was_never_opened_has_its_path(tmp_path: Path) -> None:
    job = Denied(tmp_path, "one\ntwo\n")
    job.lock()
    assert job.is_missing(8)
    assert job.position[0] == str(job.file) and job.position[1] == 0 and job.position[3] == 8
    with without_rights():
        job.source.open(job.inode, job.position).look()
        job.move()
        assert job.is_missing(8) and job.lost == []
        job.file.rename(tmp_path / ".a.log.1")  # no file of the folder's pattern
        job.file = tmp_path / ".a.log.1"
        job.move()
        assert job.is_missing(8) and job.lost == []
    job.file.chmod(0o600)
    job.move()
    answer = job.reader.read(1)
    assert isinstance(answer, tuple) and answer[0] == [] and answer[1][4], "a checkpoint knows its beginning first"
    assert job.read()[:-1] == ["one", "two"] and job.lost == []


@pytest.mark.parametrize("runs", [False, True])
def test_file_that_was_never_opened_and_is_gone_is_lost(tmp_path: Path, runs: bool) -> None:
    job = Denied(tmp_path, "one\ntwo\n")
    job.lock()
    assert job.is_missing(8)
    job.file.unlink()
    if runs:
        job.reader.stay()
        job.read()
    else:
        job.source.open(job.inode, job.position).look()
    assert job.lost == [(str(job.file), 8)]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_file_that_is_rotated_under_a_link_is_read_on(tmp_path: Path, is_compressed: bool) -> None:
    files, links = tmp_path / "files", tmp_path / "links"
    for folder in (files, links):
        folder.mkdir()
    log, old = files / "log", files / "log.1"
    log.write_text("one\n")
    (links / "app.log").symlink_to("../files/log")
    job = Bench(f"{links}/*.log")
    assert job.read() == ["one"]
    append(log, "two\n")
    log.rename(old)
    if is_compressed:
        (files / "log.1.gz").write_bytes(gzip.compress(old.read_bytes()))
        old.rename(tmp_path / "away")
    log.write_text("three\n")
    job.begin_anew()
    assert job.read() == ["two", "three"]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("is_folder", [False, True])
def test_rest_of_an_old_target_of_a_link_is_read(tmp_path: Path, is_folder: bool, is_compressed: bool) -> None:
    old, new = (tmp_path / "releases" / each for each in ("v1", "v2"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    link = tmp_path / "now" if is_folder else tmp_path / "app.log"
    log = old / "app.log"
    log.write_text("one\n")

    def point_to(folder: Path) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(folder if is_folder else folder / "app.log")

    point_to(old)
    job = Bench(f"{tmp_path}/now/*.log" if is_folder else str(link))
    assert job.read() == ["one"]
    append(log, "two\n")  # while no job runs
    if is_compressed:
        (old / "app.log.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.rename(tmp_path / "away")
    (new / "app.log").write_text("three\n")
    point_to(new)
    job.begin_anew()
    assert job.read() == ["two", "three"]


class Volumes:
    """A folder over which new volumes are mounted, whose files all get the same inode numbers, and a job's reader."""

    def __init__(self, folder: Path, pattern: str = "*.log") -> None:
        self.folder, self.told = folder, dict[str, str]()
        self.job = Bench(folder / pattern, tell=self.told.__setitem__)
        self.mount()

    def mount(self, folder: str = "") -> None:
        subprocess.run(["mount", "-t", "tmpfs", "none", self.folder / folder], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def read(self) -> list[Any]:
        """Return all that can be read after some looks."""
        return [*self.job.read(), *self.job.read(), *self.job.read()]


def replace_volume(folder: Path, lazily: bool, name: str) -> None:
    volumes = Volumes(folder)
    append(folder / "app.log", "a1\na2\n")
    with (folder / "app.log").open("a") as old:
        assert volumes.read() == ["a1", "a2"] and not volumes.told
        inode = os.fstat(old.fileno()).st_ino
        if lazily:
            volumes.unmount()
        volumes.mount()
        append(folder / name, "b1\nb2\nb3\n")
        assert (folder / name).stat().st_ino == inode
        old.write("a3\nend")
    assert volumes.read() == ["a3", "end", "b1", "b2", "b3"] and volumes.read() == []
    assert says(*volumes.told.values(), f"'{folder}/{name}'", "inode number", f"'{folder}/app.log'", "its beginning")
    append(folder / name, "b4\n")
    assert volumes.read() == ["b4"]


def cover_for_a_while(folder: Path) -> None:
    volumes = Volumes(folder)
    append(folder / "app.log", "a1\n")
    with (folder / "app.log").open("a") as old:
        assert volumes.read() == ["a1"]
        volumes.mount()
        assert volumes.read() == [] and volumes.read() == []
        old.write("a2\n")
    assert volumes.read() == ["a2"], "its reader has it open"
    volumes.unmount()
    append(folder / "app.log", "a3\n")
    assert volumes.read() == ["a3"] and not volumes.told


def mount_a_copy(folder: Path) -> None:
    volumes = Volumes(folder)
    append(folder / "app.log", "a1\n")
    assert volumes.read() == ["a1"]
    volumes.mount()
    append(folder / "app.log", "a1\na2\n")
    assert volumes.read() == ["a2"] and len(volumes.told) == 1


def mount_two_at_once(folder: Path) -> None:
    volumes = Volumes(folder, "?/app.log")
    for name in "12":
        (folder / name).mkdir()
        volumes.mount(name)
    append(folder / "1" / "app.log", "a1\n")
    assert volumes.read() == ["a1"]
    append(folder / "2" / "app.log", "b1\n")
    with pytest.raises(SourceError) as refused:
        volumes.read()
    assert says(str(refused.value), f"'{folder}/1/app.log'", f"'{folder}/2/app.log'", "two file systems", "Narrow")


@pytest.mark.slow
def test_volumes_with_equal_inode_numbers(tmp_path: Path) -> None:
    """Runs where a mount changes nothing elsewhere."""
    name = __name__.rpartition(".")[2]
    script = f"""
from pathlib import Path
from tests.job import {name}
from megaflow.job.files import followed_files, growing_file
for module in (followed_files, growing_file):
    module.FIND_SECONDS = module.POLL_SECONDS = growing_file.DELETED_SECONDS = 0.0
folders = map(Path, {[str(tmp_path / name) for name in "abcdef"]!r})
for each, *arguments in [
    ({name}.replace_volume, False, "app.log"), ({name}.replace_volume, False, "new.log"),
    ({name}.replace_volume, True, "app.log"), ({name}.cover_for_a_while,), ({name}.mount_a_copy,),
    ({name}.mount_two_at_once,),
]:
    folder = next(folders)
    folder.mkdir()
    each(folder, *arguments)
"""
    root = Path(__file__).parent.parent.parent
    run = partial(subprocess.run, capture_output=True, text=True, cwd=root, check=False)
    if run([*NAMESPACE, "true"]).returncode:
        pytest.skip(f"this machine allows no mount namespace: {' '.join(NAMESPACE)} fails")
    ended = run([*NAMESPACE, sys.executable, "-c", script])
    assert not ended.returncode, ended.stderr


def test_a_name_that_looks_like_a_glob_stays_a_name_while_it_is_missing(tmp_path: Path) -> None:
    file, folder = tmp_path / "app[1].log", tmp_path / "x [2024]"
    file.write_text("right\n")
    folder.mkdir()
    (tmp_path / "app1.log").write_text("wrong\n")
    (tmp_path / "x 2").mkdir()
    (tmp_path / "x 2" / "a").write_text("wrong\n")
    logs, all_in_folder = (Bench(find_followed(str(path)).names.followed[0][1]) for path in (file, folder))
    file.rename(tmp_path / "gone")
    folder.rename(tmp_path / "away")
    assert logs.read() == all_in_folder.read() == []
    (tmp_path / "gone").rename(file)
    (tmp_path / "away").rename(folder)
    (folder / "a").write_text("inside\n")
    assert (logs.read(), all_in_folder.read()) == (["right"], ["inside"])


def changed(path: Path, how: str) -> None:
    """Change a file as a program may before it is opened."""
    match how:
        case "grown":
            append(path, "more\n")
        case "truncated":
            path.write_text("")
        case "written anew":
            path.write_text("other\nlines\nthan before\n")
        case "renamed":
            path.rename(path.with_name("b.log"))
        case "touched":
            os.utime(path, ns=(1, 1))


def opened(pattern: str, inode: int, position: Any, sight: Any, decides: bool = False) -> FollowedFile:
    """Return the reader of a file in a process that compares it."""
    reader = FollowedFiles(pattern, decides=lambda: decides).open(inode, position)
    reader.expect_sight(sight)
    return reader


def lines_of(reader: FollowedFile) -> list[Any] | NotHere:
    """Return all that a reader reads now, or why there is nothing."""
    lines: list[Any] = []
    while not isinstance(answer := reader.read(9), Idle):
        if isinstance(answer, NotHere):
            return answer
        lines += answer[0]
    reader.close()
    return lines


@pytest.mark.parametrize("text, how, is_same", [
    ("a\nb\n", "", True), ("a\nb\n", "grown", True), ("a\nb\n", "touched", True), ("a\nb\n", "truncated", False),
    ("a\nb\n", "written anew", False), ("a\nb\n", "renamed", False), ("", "", True), ("", "grown", False),
    ("", "touched", False), ("", "renamed", False), ("a\n" * 900, "grown", True), ("a\n" * 900, "written anew", False),
])  # fmt: skip
def test_new_file_is_read_by_a_process_that_sees_the_same(tmp_path: Path, text: str, how: str, is_same: bool) -> None:
    path, pattern = tmp_path / "a.log", f"{tmp_path}/*.log"
    path.write_text(text)
    source = FollowedFiles(pattern)
    [inode] = source.discover().partitions
    sight = source.first_sights([inode, 7])[inode]
    changed(path, how)
    wanted = "".join(each.read_text() for each in tmp_path.iterdir()).split("\n")[:-1]
    for _ in range(2):
        here = lines_of(opened(pattern, inode, None, sight))
        if is_same:
            assert here == wanted
        else:
            assert isinstance(here, NotHere) and here.differs and not here.is_held
            assert says(here.why, str(tmp_path), ".log", "is another file than the job has found", str(inode))
    assert lines_of(opened(pattern, inode, None, sight, decides=True)) == wanted, "the file has changed"
    assert lines_of(opened(pattern, inode, None, None)) == wanted, "nothing is known of it"


@pytest.mark.parametrize("how, is_same", [
    ("", True), ("grown", True), ("renamed", True), ("truncated", False), ("written anew", False),
])  # fmt: skip
def test_file_is_read_on_by_a_process_that_sees_the_same(tmp_path: Path, how: str, is_same: bool) -> None:
    path, pattern = tmp_path / "a.log", f"{tmp_path}/*.log"
    path.write_text("a\nb\nc\n")
    bench = Bench(pattern)
    assert bench.read() == ["a", "b", "c"]
    [(inode, position)] = bench.positions.items()
    changed(path, how)
    new = {"grown": ["more"], "written anew": ["other", "lines", "than before"]}.get(how, [])
    here = lines_of(reader := opened(pattern, inode, position, None))
    assert here == new if is_same else isinstance(here, NotHere) and here.differs
    assert lines_of(opened(pattern, inode, position, None, decides=True)) == new
    if not is_same:
        path.write_text("a\nb\nc\nd\n")
        assert lines_of(reader) == ["d"], "it looks again"


def test_process_that_has_opened_a_file_notices_changes_itself(tmp_path: Path) -> None:
    path, pattern = tmp_path / "a.log", f"{tmp_path}/*.log"
    path.write_text("a\n")
    source = FollowedFiles(pattern)
    [inode] = source.discover().partitions
    reader = opened(pattern, inode, None, source.first_sights([inode])[inode])
    assert lines_of(reader) == ["a"]
    path.write_text("other\nlines\n")
    assert lines_of(reader) == ["other", "lines"]


def test_file_that_is_gone_differs_from_none(tmp_path: Path) -> None:
    path, pattern = tmp_path / "a.log", f"{tmp_path}/*.log"
    path.write_text("a\n")
    source = FollowedFiles(pattern)
    [inode] = source.discover().partitions
    sight = source.first_sights([inode])[inode]
    path.unlink()
    assert source.first_sights([inode]) == {}
    here = lines_of(opened(pattern, inode, None, sight))
    assert isinstance(here, NotHere) and not here.differs


def test_new_file_that_cannot_be_looked_at_is_compared_by_its_path(tmp_path: Path) -> None:
    path, pattern = tmp_path / "a.log", f"{tmp_path}/*.log"
    path.write_text("a\n")
    path.chmod(0)
    source = FollowedFiles(pattern)
    [inode] = source.discover().partitions
    with without_rights():
        sight = source.first_sights([inode])[inode]
    path.chmod(0o600)
    assert lines_of(opened(pattern, inode, None, sight)) == ["a"]
    path.rename(tmp_path / "b.log")
    here = lines_of(opened(pattern, inode, None, sight))
    assert isinstance(here, NotHere) and here.differs

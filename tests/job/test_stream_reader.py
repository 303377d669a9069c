"""A file decoded as a stream yields the lines of its text, wherever reading stops and continues."""

import contextlib
import gzip
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.files.splits import plan_splits
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.job.formats.text_lines import BLOCK_BYTES


def lines_of_rest(split: Split, block_bytes: int = BLOCK_BYTES) -> list[str]:
    with contextlib.closing(reader_of(split, "replace", block_bytes)) as reader:
        return [line for batch in iter(reader.next_batch, []) for line in batch]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compressed") / "text.gz"


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("", gzip.compress), ("utf-16", bytes), ("utf-32-be", bytes), ("utf-16", gzip.compress), ("cp500", bytes)],
    ids=["gzip", "utf-16", "utf-32-be", "utf-16 in gzip", "cp500"],
)
@given(
    lines=st.lists(st.text(alphabet="aé€\ufeff\x0b", max_size=9), max_size=30),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1),
    last=st.sampled_from(["", "x", "é\r"]),
    block_bytes=st.integers(1, 50),
    taken=st.integers(0, 40),
)
def test_what_is_left_after_any_line_is_a_split_that_has_the_others(
    path: Path, encoding: str, compress: Callable[[bytes], bytes], lines: list[str], ends: list[str], last: str,
    block_bytes: int, taken: int,
) -> None:  # fmt: skip
    text = "".join(line + ends[number % len(ends)] for number, line in enumerate(lines)) + last
    if encoding == "cp500":
        text = text.encode("latin-1", "ignore").decode("latin-1")
    data = compress(text.encode(encoding or "utf-8"))
    path.write_bytes(data)
    plain = path.with_suffix("")
    plain.write_bytes(text.encode())
    expected = [each for split in plan_splits([str(plain)]) for each in lines_of_rest(split)]
    if not data:
        return
    [whole] = plan_splits([str(path)], 4, encoding)
    assert (whole.start, whole.end, whole.skip) == (0, len(data), 0), "it is not cut"
    assert lines_of_rest(whole, block_bytes) == expected
    with contextlib.closing(reader_of(whole, "replace", block_bytes)) as reader:
        handed: list[str] = []
        while len(handed) < taken and (batch := reader.next_batch()):
            handed += batch
        left = reader.rest(max(0, len(handed) - taken))
    if left is None:
        assert taken >= len(expected)
    else:
        assert left.start < left.end == len(data) and left.number == whole.number
        assert lines_of_rest(left, block_bytes) == expected[taken:]


def test_a_position_beyond_the_size_of_the_file_is_one(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a line of the text\n" * 100_000))
    [whole] = plan_splits([str(path)])
    with contextlib.closing(reader_of(whole)) as reader:
        for _ in range(250):
            reader.next_batch()
        left = reader.rest(0)
    assert left is not None and left.start < left.end < left.skip
    assert len(lines_of_rest(left)) == 100_000 - left.skip // 19


def test_whole_lines_before_the_damage_are_read_and_then_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    lines = [os.urandom(20).hex() for _ in range(10_000)]
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:200_000])
    with contextlib.closing(reader_of(*plan_splits([str(path)]))) as reader:
        read: list[str] = []
        with pytest.raises(SourceError, match=r"text.gz' is incomplete: it ends at byte 200000.* it were read: (\d+)"):
            while batch := reader.next_batch():
                read += batch
        assert read == lines[: len(read)] and len(read) > 7_000 and reader.position == len(read) * 41


def test_errors_of_the_text_name_the_file_and_count_bytes_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"good\nb\xffd\n"))
    with pytest.raises(SourceError, match=r"Line 2 of .*text.gz' is not UTF-8: byte 6 is 0xff"):
        reader_of(*plan_splits([str(path)]), errors="strict").read()


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"x" * 5_000_000))
    with pytest.raises(SourceError, match=r"the text of .*text.gz' has a line of more than 1 MiB at byte 0"):
        reader_of(*plan_splits([str(path)]), format=RecordFormat(bytes_max=1 << 20)).read()


def test_text_is_read_though_its_name_says_that_it_is_compressed(tmp_path: Path) -> None:
    for name, data in (("a.csv.gz", b"a\n"), ("a.csv", gzip.compress(b"a\n"))):
        (tmp_path / name).write_bytes(data)
        assert lines_of_rest(*plan_splits([str(tmp_path / name)])) == ["a"]


def test_an_archive_in_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    (tmp_path / "a.txt").write_text("a\n")
    with tarfile.open(path, "w:gz") as file:
        file.add(tmp_path / "a.txt")
    with pytest.raises(SourceError, match=rf"text of '{path}' as lines: it is a tar archive\..* tar -xOf {path} \|"):
        reader_of(*plan_splits([str(path)])).read()
    path.write_bytes(gzip.compress(gzip.compress(b"a\n")))
    with pytest.raises(SourceError, match="it is compressed twice, by gzip and by gzip"):
        reader_of(*plan_splits([str(path)])).read()


def test_a_fault_of_the_encoding_follows_the_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "text"
    data = "a\nb\nc".encode("utf-16-le")
    path.write_bytes(data + b"\x00\xd8" + data)
    [whole] = plan_splits([str(path)], None, "utf-16-le")
    with contextlib.closing(reader_of(whole)) as reader:
        assert reader.next_batch() == ["a", "b"]
        with pytest.raises(SourceError, match=rf"Line 3 of '{path}' is not UTF-16-LE: byte 10 is 0x00"):
            reader.next_batch()


@pytest.mark.parametrize("encoding", ["", "utf-16-le", "ascii"])
def test_each_replaced_sequence_is_counted_once(encoding: str, tmp_path: Path) -> None:
    path, bad = tmp_path / "text", b"\x00\xd8" if encoding == "utf-16-le" else b"\xff"
    line = "line ".encode(encoding or "utf-8") + bad + "\n".encode(encoding or "utf-8")
    path.write_bytes(line * 9)
    [whole] = plan_splits([str(path)], None, encoding)
    for taken in range(10):
        replaced = ReplacedBytes()
        with contextlib.closing(reader_of(whole, "replace", replaced=replaced)) as reader:
            assert len(reader.next_batch()) == 9
            reader.note(9 - taken)
            left = reader.rest(9 - taken)
        assert replaced.counts.get("", 0) == taken
        if left is not None:
            with contextlib.closing(reader_of(left, "replace", replaced=replaced)) as reader:
                assert len([*iter(reader.next_batch, [])]) == 1
        assert replaced.counts == {"": 9}


def test_another_kind_of_encoding_cannot_go_on_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a\nb\n")
    [whole] = plan_splits([str(path)])
    for wrong in (replace(whole, start=2, encoding="utf-16"), replace(whole, start=2, skip=2)):
        with pytest.raises(SourceError, match="was read in another encoding"):
            reader_of(wrong)
    assert lines_of_rest(replace(whole, start=2, encoding="iso8859-1")) == ["b"]

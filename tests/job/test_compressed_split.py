"""A compressed file as a split: the lines of its text, wherever reading stops and goes on."""

import contextlib
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job import split_reader
from megaflow.job.compressed_split import reader_of
from megaflow.job.splits import plan_splits


def lines_of_rest(split: Split, block_bytes: int = split_reader.BLOCK_BYTES) -> list[str]:
    with contextlib.closing(reader_of(split, "replace", block_bytes)) as reader:
        return [line for batch in iter(reader.next_batch, []) for line in batch]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compressed") / "text.gz"


@given(
    lines=st.lists(st.text(alphabet="aé€\ufeff\x0b", max_size=9), max_size=30),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1),
    last=st.sampled_from(["", "x", "é\r"]),
    block_bytes=st.integers(1, 50),
    taken=st.integers(0, 40),
)
def test_what_is_left_after_any_line_is_a_split_that_has_the_others(
    path: Path, lines: list[str], ends: list[str], last: str, block_bytes: int, taken: int
) -> None:
    text = "".join(line + ends[number % len(ends)] for number, line in enumerate(lines)) + last
    data = gzip.compress(text.encode())
    path.write_bytes(data)
    plain = path.with_suffix("")
    plain.write_bytes(text.encode())
    expected = [each for split in plan_splits([str(plain)]) for each in lines_of_rest(split)]
    [whole] = plan_splits([str(path)], 4)
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
        with pytest.raises(SourceError, match=r"text.gz' is cut off: it ends at byte 200000.* before are read, (\d+)"):
            while batch := reader.next_batch():
                read += batch
        assert read == lines[: len(read)] and len(read) > 7_000 and reader.position == len(read) * 41


def test_errors_of_the_text_name_the_file_and_count_bytes_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"good\nb\xffd\n"))
    with pytest.raises(SourceError, match=r"invalid UTF-8 in the text of .*text.gz' at byte 6 "):
        reader_of(*plan_splits([str(path)]), errors="strict").read()


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reader, "LINE_BYTES_MAX", 1 << 20)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"x" * 5_000_000))
    with pytest.raises(SourceError, match=r"the text of .*text.gz' has a line of more than 1 MiB at byte 0"):
        reader_of(*plan_splits([str(path)])).read()

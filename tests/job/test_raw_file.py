"""A print covers the bytes before an offset, in whatever pieces they come."""

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.formats import raw_file
from megaflow.job.formats.raw_file import (
    NOTHING_READ,
    SAMPLE_BYTES,
    SAMPLES,
    TextPrint,
    WrittenPart,
    print_of,
    print_of_file,
)

LINE = b"0123456789\n"


def test_a_print_is_of_the_bytes_before_a_place(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    Path(path).write_bytes(LINE * 10_000)
    before = print_of(path, 60_000)
    with open(path, "r+") as file:
        file.seek(60_000)
        file.write("x")
    assert print_of(path, 60_000) == before != print_of(path, 60_001)
    for place in (0, 59_999):
        with open(path, "r+") as file:
            file.seek(place)
            file.write("x")
        assert print_of(path, 60_000) != before
        before = print_of(path, 60_000)


def test_the_prints_of_the_first_stores_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(LINE * 10_000)
    assert print_of(str(tmp_path / "a"), 100_000) == "eeb481602e6fb11971170c53"
    assert print_of(str(tmp_path / "a"), 11) == "215a9343e3dff9ac7b0d9e23"
    assert print_of(str(tmp_path / "a"), 0) == NOTHING_READ


def test_an_open_file_has_its_print_when_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(LINE)
    file, before = os.open(path, os.O_RDONLY), print_of(str(path), 11)
    path.unlink()
    assert print_of_file(file, 11) == before
    os.close(file)
    with pytest.raises(FileNotFoundError):
        print_of(str(path), 11)


@given(
    st.integers(0, 3 * SAMPLES * SAMPLE_BYTES), st.lists(st.integers(1, 5 * SAMPLE_BYTES), max_size=40), st.integers()
)
def test_a_text_has_the_print_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, length: int, pieces: list[int], seed: int
) -> None:
    data = b"".join(b"%d\n" % (number * seed) for number in range(sum(pieces) // 2))[: sum(pieces)]
    path = tmp_path_factory.getbasetemp() / "text"
    path.write_bytes(data)
    text, start = TextPrint(length), 0
    for size in pieces:
        text.add(data[start : start + size])
        start += size
    assert text.digest() == (print_of(str(path), length) if length <= len(data) else None)


def test_written_part_ends_before_the_last_nuls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written from the front, with gaps, and gets more or less space behind."""
    monkeypatch.setattr(raw_file, "NUL_BLOCK_BYTES", 4)
    monkeypatch.setattr(raw_file, "NUL_BLOCKS", 3)
    for seed in range(200):
        rng, file, at, part = Random(seed), bytearray(), 0, WrittenPart(0)

        def bytes_at(start: int, size: int, file: bytearray = file) -> bytes:
            return bytes(file[start : start + size])

        for _ in range(rng.randint(1, 20)):
            gap, size, space = rng.randint(0, 9), rng.randint(1, 9), rng.randint(-30, 30)
            at += gap
            file.extend(bytes(max(0, at + size - len(file))))
            file[at : at + size] = b"x" * size
            at += size
            del file[max(len(file) + space, at) :]
            file.extend(bytes(max(0, space)))
            part.find_end(bytes_at, len(file))
        for _ in range(len(file)):
            end = part.find_end(bytes_at, len(file))
        assert end == at and part.has_space == (end < len(file)), seed


def test_gap_that_a_late_thread_fills_is_waited_for() -> None:
    file, part = bytearray(b"one\n" + bytes(20)), WrittenPart(0)

    def find_end() -> int:
        return part.find_end(lambda start, size: bytes(file[start : start + size]), len(file))

    assert find_end() == 4
    file[8:14] = b"three\n"
    assert find_end() == 4
    file[4:8] = b"two\n"
    assert find_end() == 14
    file[15:17] = b"x\n"
    assert [find_end() for _ in range(3)] == [14, 17, 17], "it stays"

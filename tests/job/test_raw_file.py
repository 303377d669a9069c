"""A print covers the bytes before an offset, in whatever pieces they come."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.formats.raw_file import NOTHING_READ, SAMPLE_BYTES, SAMPLES, TextPrint, print_of, print_of_file

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

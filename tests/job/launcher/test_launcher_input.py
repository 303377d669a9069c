"""Lines that the launcher reads: cut like those of files, as far as they are asked for."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import SourceError
from megaflow.job.launcher.launcher_input import FileLines, TextSplitter, find_input
from megaflow.job.launcher.wakeups import Wakeup
from megaflow.job.splits import lines_of


@given(st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"a", b"\r").replace(b"b", b"\n")), max_size=12))
def test_however_the_bytes_arrive_the_lines_are_those_of_the_whole(parts: list[bytes]) -> None:
    splitter = TextSplitter("input")
    lines = [line for part in parts for line in splitter.feed(part)] + splitter.end()
    assert lines == lines_of(b"".join(parts).decode("utf-8", "replace"))


@given(st.text(alphabet="aé€\r\n\u2028", max_size=40), st.integers(1, 5))
def test_a_character_cut_in_two_is_whole_again(text: str, size: int) -> None:
    data = text.encode()
    splitter = TextSplitter("input", "strict")
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    assert lines + splitter.end() == lines_of(text)


def test_invalid_text_is_reported_with_its_byte_if_wanted() -> None:
    splitter = TextSplitter("standard input", "strict")
    assert splitter.feed(b"good\nmore") == ["good"]
    with pytest.raises(SourceError, match=r"standard input at byte 10 \(ff: invalid start byte\)"):
        splitter.feed(b" \xff\n")
    assert TextSplitter("input").feed(b"\xff\n") == ["\ufffd"]


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


def test_a_file_is_one_split_and_unordered_it_is_cut_into_several(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "odd?unordered"):
        (tmp_path / name).write_bytes(b"line\n" * 10_000)

    def pieces(spec: str) -> list[str]:
        splits = find_input(str(tmp_path / spec), 2, "replace").splits
        return [os.path.relpath(split.path, tmp_path) for split in splits]

    assert pieces("a.txt") == ["a.txt"]
    assert pieces("?.txt") == ["a.txt", "b.txt"], "a question mark is a character of globs"
    assert pieces("a.txt?unordered") == ["a.txt"] * 8
    assert pieces("?.txt?unordered") == ["a.txt"] * 4 + ["b.txt"] * 4
    assert pieces("odd?unordered") == ["odd?unordered"], "what exists is taken literally"
    assert pieces("odd?unordered?unordered") == ["odd?unordered"] * 8
    assert pieces("odd?[a-z]nordered") == ["odd?unordered"], "an unknown option is part of the glob"
    assert find_input("-?unordered", 2, "replace").pushed is not None


@pytest.mark.parametrize("option", ["unorderd", "Unordered", "un-ordered"])
def test_an_option_that_was_perhaps_meant_is_named(tmp_path: Path, option: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    with pytest.raises(SourceError, match=r"no file matches.*; did you mean '.*a\.txt\?unordered'\?"):
        find_input(f"{path}?{option}", 2, "replace")
    with pytest.raises(SourceError, match=r"'.*b\.txt': no such file") as refusal:
        find_input(f"{tmp_path / 'b.txt'}?unordered", 2, "replace")
    assert "did you mean" not in str(refusal.value)
    with pytest.raises(SourceError, match=r"did you mean 'spark:kafka:\?kafka.*&subscribe=x'"):
        find_input("kafka:x", 1, "replace")

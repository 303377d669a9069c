"""The lines of all splits together are the lines of the file, for any borders."""

import contextlib
import io
import itertools
import os
from codecs import BOM_UTF8
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megaflow.control.messages import Split
from megaflow.errors import SourceError, UsageError
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.files.splits import broken_links, cut, find_files, plan_splits
from megaflow.job.formats.text_lines import line_start, lines_of
from megaflow.job.launcher.run.launch import LaunchOptions, input_of
from megaflow.job.spec import AppFile, JobSpec
from tests.rights import without_rights
from tests.words import says

TRICKY = [
    b"a",
    b"bc",
    b"\n",
    b"\r",
    b"\r\n",
    "é".encode(),
    "€".encode(),
    "😀".encode(),
    b"\xff",
    b"\xe2\x82",
    b"\xf0\x9f",
]
TRICKY += [b"\x0b", b"\x0c", b"\x1c", b"\x85", "\u2028".encode(), "\x85".encode(), b"\x00", "\ufeff".encode()]
contents = st.lists(st.one_of(st.sampled_from(TRICKY), st.binary(max_size=3)), max_size=40).map(b"".join)


def lines_by_the_standard_library(data: bytes) -> list[str]:
    """Return a file's lines. Do not use "utf-8-sig", which also drops the beginning of a byte order mark."""
    text = io.TextIOWrapper(io.BytesIO(data.removeprefix(BOM_UTF8)), encoding="utf-8", errors="replace", newline=None)
    return [line.removesuffix("\n") for line in text]


def read_splits(splits: list[Split], block_bytes: int, errors: str = "replace") -> list[str]:
    lines = []
    for split in splits:
        with contextlib.closing(SplitReader(split, errors, block_bytes)) as reader:
            while not reader.done:
                lines += reader.read()
    return lines


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("splits") / "text"


@given(data=contents, borders=st.lists(st.integers(0, 120)), block_bytes=st.integers(1, 50))
def test_the_splits_of_a_file_hold_its_lines_whatever_the_borders(
    path: Path, data: bytes, borders: list[int], block_bytes: int
) -> None:
    path.write_bytes(data)
    edges = sorted({0, len(data), *(border for border in borders if border < len(data))})
    splits = [Split(i, str(path), start, end) for i, (start, end) in enumerate(itertools.pairwise(edges))]
    assert read_splits(splits, block_bytes) == lines_by_the_standard_library(data)


@example(data=BOM_UTF8[:1], block_bytes=1, blocks=0)
@given(data=contents, block_bytes=st.integers(1, 50), blocks=st.integers(0, 5))
def test_a_split_read_in_part_is_a_split_from_the_position_on(
    path: Path, data: bytes, block_bytes: int, blocks: int
) -> None:
    path.write_bytes(data)
    whole = Split(0, str(path), 0, len(data))
    with contextlib.closing(SplitReader(whole, "replace", block_bytes)) as reader:
        first = [line for _ in range(blocks) for line in reader.read()]
        rest = Split(1, str(path), reader.position, reader.end)
    assert first + read_splits([rest], block_bytes) == lines_by_the_standard_library(data)


@given(data=contents, position=st.integers(0, 100))
def test_a_line_starts_where_the_slow_scan_says(path: Path, data: bytes, position: int) -> None:
    path.write_bytes(data)
    position = min(position, len(data))
    starts = [0, len(data)]
    starts += [i for i in range(1, len(data)) if data[i - 1] == 10 or (data[i - 1] == 13 and data[i] != 10)]
    with path.open("rb") as file:
        assert line_start(file.fileno(), position) == min(start for start in starts if start >= position)


@given(text=st.text())
def test_lines_end_at_newlines_and_carriage_returns_only(text: str) -> None:
    assert lines_of(text) == [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def test_a_carriage_return_and_its_newline_in_different_blocks_are_one_end(path: Path) -> None:
    path.write_bytes(b"abc\r\ndef\r\n")
    for block_bytes in range(1, 11):
        for border in range(1, 10):
            splits = [Split(0, str(path), 0, border), Split(1, str(path), border, 10)]
            assert read_splits(splits, block_bytes) == ["abc", "def"]


def test_a_line_longer_than_any_block_is_read_whole(path: Path) -> None:
    path.write_bytes(b"x" * 300_000 + b"\n" + b"y" * 200_000)
    assert read_splits(plan_splits([str(path)], 2), 10) == ["x" * 300_000, "y" * 200_000]


@pytest.mark.parametrize("block_bytes", [4, 8, 100])
def test_invalid_text_is_reported_with_its_file_and_its_first_byte(path: Path, block_bytes: int) -> None:
    path.write_bytes(b"abc\ndefg\nhi\xff\xfe\n")
    with pytest.raises(SourceError, match=rf"Line 3 of '{path}' is not UTF-8: byte 11 is 0xff"):
        read_splits([Split(0, str(path), 0, 5), Split(1, str(path), 5, 14)], block_bytes, "strict")
    with pytest.raises(SourceError, match=rf"--lines 'old={path}\?encoding=latin-1'"):
        read_splits([Split(0, str(path), 0, 14, input="old")], block_bytes, "strict")


def test_valid_text_passes_the_strict_reader(path: Path) -> None:
    path.write_text("é€😀\n", encoding="utf-8")
    assert read_splits(plan_splits([str(path)], 1), 3, "strict") == ["é€😀"]


def test_another_policy_for_errors_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="'ignore'"):
        SplitReader(Split(0, str(path), 0, 1), "ignore")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(path: Path) -> None:
    path.write_bytes(b"one\ntwo\nthree\n")
    with contextlib.closing(SplitReader(Split(0, str(path), 0, 14), block_bytes=4)) as reader:
        assert reader.read() == ["one"]
        os.truncate(path, 4)
        with pytest.raises(SourceError, match=r"shrank.*several machines.*another file.*\| megaflow run"):
            reader.read()


def test_a_file_that_vanished_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone.*No such file"):
        SplitReader(Split(0, str(tmp_path / "gone"), 0, 1)).read()


def test_files_are_found_by_name_directory_and_glob(tmp_path: Path) -> None:
    for name in ["b.txt", "a.txt", "c.log", ".hidden", "deep/d.txt", "odd[1].txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")

    def names(spec: str) -> list[str]:
        return [os.path.relpath(path, tmp_path) for path in find_files(str(tmp_path / spec))]

    assert names("a.txt") == ["a.txt"]
    assert names("*.txt") == ["a.txt", "b.txt", "odd[1].txt"]
    assert names("**/*.txt") == ["a.txt", "b.txt", "deep/d.txt", "odd[1].txt"]
    assert names("**") == ["a.txt", "b.txt", "c.log", "deep/d.txt", "odd[1].txt"]
    assert names("odd[1].txt") == ["odd[1].txt"]
    assert names(".") == ["a.txt", "b.txt", "c.log", "odd[1].txt"]
    assert names("*") == ["a.txt", "b.txt", "c.log", "odd[1].txt"]


def test_a_link_to_a_folder_above_gives_no_further_names(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x.txt", "a/y.txt", "a/b/z.txt"):
        (tmp_path / name).write_text("x\n")
    wanted = [f"{tmp_path}/{name}" for name in ("a/b/z.txt", "a/y.txt", "x.txt")]
    for link, target in (("a/b/up", ".."), ("a/b/top", "../.."), ("a/round", "round")):
        (tmp_path / link).symlink_to(target)
        assert find_files(f"{tmp_path}/**/*.txt") == find_files(f"{tmp_path}/**") == wanted
        found = find_files(f"{tmp_path}/**/b/**/*.txt")
        assert len({os.path.realpath(each) for each in found}) == len(found)
        assert broken_links(f"{tmp_path}/**") == [f"{tmp_path}/a/round"] * (link == "a/round")


def test_linked_folders_are_searched_once_by_their_own_names(tmp_path: Path) -> None:
    for name in ("in/real/x.txt", "in/.hidden/x.txt", "out/deep/y.txt", "in/[1]/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x\n")
    for link, target in (("a", "real"), ("z", "real"), ("b", "../out"), ("c", "../out/deep")):
        (tmp_path / "in" / link).symlink_to(target)
    (tmp_path / "out" / "in").symlink_to("../in")

    def names(spec: str) -> list[str]:
        return [os.path.relpath(path, tmp_path / "in") for path in find_files(f"{tmp_path}/in/{spec}")]

    assert names("**/*.txt") == ["[1]/x.txt", "b/deep/y.txt", "real/x.txt"]
    assert names("*/**/*.txt") == ["[1]/x.txt", "b/deep/y.txt", "real/x.txt"]
    assert names("**/a/*.txt") == names("a/**") == ["a/x.txt"], "the pattern names the link"
    assert names("*/*.txt") == ["[1]/x.txt", "a/x.txt", "c/y.txt", "real/x.txt", "z/x.txt"]


def test_a_job_without_a_store_reads_a_file_with_two_names_once(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b\n")
    (tmp_path / "a.txt").symlink_to("b.txt")
    os.link(tmp_path / "b.txt", tmp_path / "c.txt")
    (tmp_path / "d.txt").write_text("b\n")
    told: list[str] = []
    spec = f"{tmp_path}/*.txt"
    options = LaunchOptions(JobSpec(AppFile("app.py", "dataflow")), lines={"x": spec, "y": spec})
    found = input_of(options, told.append)
    assert [(each.number, each.input, os.path.basename(each.path)) for each in found.splits] == [
        (0, "x", "a.txt"), (1, "x", "d.txt"), (2, "y", "a.txt"), (3, "y", "d.txt")
    ]  # fmt: skip
    assert says(told[0], f"reads '{tmp_path}/a.txt' once, and not again as '{tmp_path}/b.txt'")


def test_a_home_folder_stands_for_its_tilde_unless_that_is_a_name_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.txt").write_text("x\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert find_files("~/a.txt") == find_files("~/*.txt") == find_files("~") == [str(home / "a.txt")]
    (tmp_path / "~").write_text("x\n")
    assert find_files("~") == ["~"]


def test_a_byte_order_mark_is_dropped_at_the_beginning_of_a_file_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "text"
    mark = "\ufeff".encode()
    for data in (mark, mark + b"\n", mark + b"a\n" + mark + b"b", mark + mark + b"a"):
        path.write_bytes(data)
        for border in range(1, len(data)):
            splits = [Split(0, str(path), 0, border), Split(1, str(path), border, len(data))]
            assert read_splits(splits, 1) == lines_by_the_standard_library(data)
    path.write_bytes(mark + b"a\xff\n")
    with pytest.raises(SourceError, match=rf"Line 1 of '{path}' is not UTF-8: byte 4 is 0xff"):
        SplitReader(Split(0, str(path), 0, 6), "strict").read()


def test_what_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for spec, words in [("none.txt", "no such file"), ("*.txt", "no file matches"), ("empty", "holds no files")]:
        with pytest.raises(SourceError, match=words):
            find_files(str(tmp_path / spec))
    with pytest.raises(SourceError, match="--lines -"):
        find_files(str(tmp_path / "fifo"))


@pytest.mark.parametrize("mode", [0, 0o400, 0o100])
def test_folders_that_cannot_be_searched_are_named(tmp_path: Path, mode: int) -> None:
    logs, closed = tmp_path / "logs", tmp_path / "logs" / "closed"
    for folder in (logs / "open", closed / "deep"):
        folder.mkdir(parents=True)
    for file in (logs / "open" / "a.log", closed / "b.log", closed / "deep" / "c.log"):
        file.write_text("x\n")
    closed.chmod(mode)
    by_name = ["closed/b.log", "closed/deep/*.log"]
    with without_rights():
        for spec in ("**", "**/*.log", "*/*.log", "*/b.log", "closed", "closed/", "closed/*.log", *by_name):
            if mode == 0o100 and spec in ("*/b.log", *by_name):
                assert find_files(str(logs / spec)), "the names are known"
                continue
            with pytest.raises(SourceError) as caught:
                find_files(f"{logs}/{spec}")
            assert says(str(caught.value), f"folder '{closed}", "Permission denied"), spec
            assert broken_links(f"{logs}/{spec}") == []
        noted: list[str] = []
        found = find_files(f"{logs}/**/*.log", closed=lambda folder, error: noted.append(folder))
        assert found == [str(logs / "open" / "a.log")] and noted == [str(closed)]
        assert find_files(f"{logs}/open/*.log") == found == find_files(f"{logs}/[!c]*/*.log")
    closed.chmod(0o700)
    assert len(find_files(f"{logs}/**/*.log")) == 3


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux has it")
def test_a_file_that_hides_its_size_is_refused_with_the_remedy_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert os.stat("/proc/self/status").st_size == 0 and Path("/proc/self/status").read_bytes()
    assert plan_splits([str(tmp_path / "empty")], 2) == []
    with pytest.raises(SourceError, match=r"cat /proc/self/status \| megaflow run … --lines -"):
        plan_splits([str(tmp_path / "empty"), "/proc/self/status"], 2)


@given(
    sizes=st.lists(st.integers(0, 300_000_000), max_size=20).map(
        lambda sizes: [(f"f{i}", n) for i, n in enumerate(sizes)]
    ),
    workers=st.none() | st.integers(1, 9),
)
def test_every_byte_is_in_one_split(sizes: list[tuple[str, int]], workers: int | None) -> None:
    splits = cut(sizes, workers)
    covered: dict[str, int] = {}
    for split in splits:
        assert split.start == covered.get(split.path, 0) < split.end
        covered[split.path] = split.end
    assert covered == {path: size for path, size in sizes if size}
    assert [split.number for split in splits] == list(range(len(splits)))
    if workers is None:
        assert [split.path for split in splits] == list(covered), "a file is one split"


def test_a_file_is_cut_into_a_few_splits_for_each_worker() -> None:
    assert len(cut([("a", 10_000_000)], 3)) == 12
    assert len(cut([("a", 5_000)], 3)) == 2
    assert len(cut([("a", 10)], 3)) == 1


@given(data=contents, block_bytes=st.integers(1, 50), wanted=st.integers(0, 60))
def test_a_split_can_be_read_on_after_any_line(path: Path, data: bytes, block_bytes: int, wanted: int) -> None:
    path.write_bytes(data)
    lines = lines_by_the_standard_library(data)
    with contextlib.closing(SplitReader(Split(0, str(path), 0, len(data)), "replace", block_bytes)) as reader:
        before, block = 0, 0  # lines
        while not reader.done and before + block < wanted:
            before += block
            block = len(reader.read())
        taken = min(block, wanted - before)
        position = reader.position_after(taken)
    assert read_splits([Split(0, str(path), position, len(data))], block_bytes) == lines[before + taken :]


def test_links_that_lead_nowhere_are_found_in_folders_and_patterns(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    for name in ("c.txt", ".hidden", "d.log", "loop"):
        (tmp_path / name).symlink_to("loop" if name == "loop" else "gone")
    (tmp_path / "b.txt").symlink_to("a.txt")
    assert find_files(str(tmp_path)) == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert broken_links(str(tmp_path)) == [str(tmp_path / name) for name in ("c.txt", "d.log", "loop")]
    assert broken_links(f"{tmp_path}/*.txt") == [str(tmp_path / "c.txt")]
    assert broken_links(str(tmp_path / "a.txt")) == [] == broken_links("-")


def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").symlink_to("gone")
    for follow in (False, True):
        told: list[str] = []
        spec = JobSpec(AppFile("app.py", "dataflow"), follow=follow)
        input_of(LaunchOptions(spec, lines={"x": f"{tmp_path}/*.txt?encoding=latin-1"}), told.append)
        assert len(told) == 1 and says(told[0], str(tmp_path / "b.txt"), "left out", "gone")

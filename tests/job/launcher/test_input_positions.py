"""The store records the rest of each input file. Files that have changed since then are refused."""

import gzip
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.connect.source_protocol import Idle
from megaflow.control.messages import Split, SplitEnd
from megaflow.durable.commits import Commit, SourcePartition, SplitRemainder
from megaflow.errors import SourceError, StoreError, StoreUnfit
from megaflow.job.files.file_position import FilePosition
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.files.splits import plan_splits
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.formats.csv_format import Csv
from megaflow.job.formats.json_format import JsonLines
from megaflow.job.formats.json_values import JsonValues
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.launcher.inputs.launcher_input import find_input
from megaflow.job.launcher.store.input_positions import (
    GONE,
    InputPositions,
    check_compressed,
    check_followed,
    input_again,
    report_gone,
    report_left_out,
    resumed_input,
)
from megaflow.job.launcher.store.known_files import recognized
from megaflow.timely.communication.codec.encode import encode
from tests.job.reading import Counted
from tests.words import says

LINE = "0123456789\n"


def written(path: Path, lines: int, end: str = "") -> str:
    path.write_text(LINE * lines + end)
    return str(path)


def read_all(splits: tuple[Split, ...]) -> list[str]:
    lines = []
    for split in splits:
        reader = reader_of(split)
        while batch := reader.next_batch():
            lines += batch
    return lines


def whole(*paths: str | Path, workers: int | None = None) -> InputPositions:
    """Return the splits with which a job on a new store begins."""
    return InputPositions(plan_splits(map(str, paths), workers))


def stopped(reader: SplitReader) -> SplitEnd:
    assert reader.stopped is not None
    return reader.stopped


def read_of(split: Split, records: int) -> Split:
    """Return the rest of a split after `records` records, as its reader reports it."""
    reader = reader_of(split)
    read = 0
    while read < records:
        read += len(reader.next_batch())
    rest = reader.rest(read - records)
    reader.close()
    assert rest is not None
    return rest


def ended(*splits: Split) -> dict[int, SplitEnd]:
    """Return what readers report of splits that they read to their ends."""
    ends = {}
    for split in splits:
        reader = reader_of(split)
        while reader.next_batch():
            pass
        ends[split.number] = stopped(reader)
    return ends


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=20), st.booleans())
def test_what_is_read_before_and_after_a_resume_is_the_whole_input_once(
    tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[int, int]], unordered: bool
) -> None:
    """`reads`: for each read, which of the unfinished splits, and how many thirds of it."""
    folder = tmp_path_factory.mktemp("input")
    files = [written(folder / "a", 1500), written(folder / "b", 700)]
    kept = whole(*files, workers=2 if unordered else None)
    splits = {split.number: split for split in kept.splits}
    lines: list[str] = []
    prints: dict[int, SplitEnd] = {}
    for which, thirds in reads:
        open_splits = [number for number, split in splits.items() if split.start < split.end]
        if open_splits:
            number = open_splits[which % len(open_splits)]
            reader = SplitReader(splits[number], block_bytes=1024)
            for _ in range(thirds):
                lines += reader.read()
            rest = reader.rest(0)
            if rest is None:
                assert not reader.next_batch()
                prints[number] = stopped(reader)
            splits[number] = rest or replace(splits[number], start=splits[number].end)
            reader.close()
    left = [split for split in splits.values() if split.start < split.end]
    said = kept.remainders(left, prints)
    resumed = resumed_input(said, plan_splits(files, 3 if unordered else None))
    assert resumed.to_read == tuple(left)
    assert len(lines) + len(read_all(resumed.to_read)) == 2200
    assert resumed.remainders(resumed.to_read) == said, "a commit right after the resume says the same"


def test_files_that_are_new_and_tails_are_read_too(tmp_path: Path) -> None:
    files = [written(tmp_path / name, 100) for name in ("begun", "done")]
    begun, done = (kept := whole(*files)).splits
    said = kept.remainders([read_of(begun, 1)], ended(done))
    for path in files:
        with open(path, "a") as file:
            file.write("more\n" * 3)
    files.append(written(tmp_path / "new", 5))
    resumed = resumed_input(said, plan_splits(files))
    assert resumed.to_read == (
        Split(0, begun.path, 11, 1115), Split(2, done.path, 1100, 1115), Split(3, files[2], 0, 55)
    )  # fmt: skip
    assert read_all(resumed.to_read) == [LINE.strip()] * 99 + ["more"] * 6 + [LINE.strip()] * 5
    again = resumed_input(resumed.remainders((), ended(*resumed.to_read)), plan_splits(files))
    assert again.to_read == (), "all is read"


def test_a_last_line_that_was_read_must_not_grow(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 10, end="half a l")
    said = (kept := whole(path)).remainders((), ended(*kept.splits))
    with open(path, "a") as file:
        file.write("ine\n")
    with pytest.raises(StoreError, match="to its end at byte 118, and its last line has grown"):
        resumed_input(said, plan_splits([path]))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("more", ["", "more\n", "\nmore\n"])
def test_the_end_of_the_last_line_may_come_later(tmp_path: Path, end: str, more: str) -> None:
    path = written(tmp_path / "a", 10, end="the last line")
    kept = whole(path)
    assert read_all(kept.splits)[-1] == "the last line"
    said = kept.remainders((), ended(*kept.splits))
    with open(path, "a", newline="") as file:
        file.write(end + more)
    resumed = resumed_input(said, plan_splits([path]))
    wanted = more.splitlines() if end != "\r" or not more.startswith("\n") else ["more"]  # \r\n is one end
    assert read_all(resumed.to_read) == wanted
    assert resumed_input(resumed.remainders((), ended(*resumed.to_read)), plan_splits([path])).to_read == ()
    Path(path + ".gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    os.remove(path)
    found, splits = recognized(said, plan_splits([path + ".gz"]))
    assert read_all(resumed_input(found, splits).to_read) == wanted


OPEN = {
    "csv": (Csv, {"as_": tuple}, "a,b\n" + '1,x\n2,"open\n7,8\n9,9\nclose"\n"a",3\n' * 2),
    "json": (JsonLines, {}, '1\n{"a":\n2,\n"b": [\n3\n]}\n4\nx\n{"c": [\n5\n]\n}\n6\n' * 2),
}


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("runs", [1, 2])
def test_a_record_in_which_a_file_ends_is_left_to_the_next_run(tmp_path: Path, kind: str, runs: int) -> None:
    make, options, text = OPEN[kind]
    check_runs(tmp_path / "a", text, runs, lambda counted: make(skip=counted, count=counted.count, **options))


def check_runs(path: Path, text: str, runs: int, make: Callable[[Counted], RecordFormat]) -> None:
    """Check that runs over a file that grows by lines read what one run over all of it reads."""
    lines = text.splitlines(keepends=True)
    path.write_text(text)
    whole_counted = Counted()
    wanted, _ = all_of(whole(path).splits, make(whole_counted))
    for cuts in combinations(range(1, len(lines)), runs):
        records, counted, said = list[Any](), Counted(), tuple[SplitRemainder, ...]()
        for cut in (*cuts, len(lines)):
            path.write_text("".join(lines[:cut]))
            kept = resumed_input(said, plan_splits([str(path)]))
            found, ends = all_of(kept.to_read, make(counted))
            records += found
            said = kept.remainders((), ends)
            again = resumed_input(said, plan_splits([str(path)]))
            assert all_of(again.to_read, make(Counted()))[0] == [], "the same file gives nothing new"
            assert again.remainders((), ends) == said, "a commit right after the resume says the same"
        assert records == wanted, cuts
        assert len(counted.texts) == len(whole_counted.texts), cuts


def all_of(splits: Iterable[Split], format: RecordFormat) -> tuple[list[Any], dict[int, SplitEnd]]:
    """Return the records of splits, and what their readers report."""
    records, ends = list[Any](), dict[int, SplitEnd]()
    for split in splits:
        reader = reader_of(split, format=format)
        while batch := reader.next_batch():
            records += batch
        ends[split.number] = stopped(reader)
    return records, ends


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}\n{"a": {"x": 1},\n"b": [\n{"y": 7},\n{"z": 8}]}\n{"a":3}\n',
        '\ufeff{"a":\n"é"}\n[{"a":1},\n{"é":2}\n,\n{"a":3}]\n[4\n,\n5]',
        "[1,\n2x,\n3,\n4]\n5\n[6]\n",
        '{"a": 1}\n{"b": tru, "c": [\n1,\n2]}\n{"a": 3}\n',
        "[1] ]\n2\n[3,\n4]\n",
    ],
)
def test_json_that_grows_gives_no_part_of_a_value(tmp_path: Path, text: str, runs: int) -> None:
    check_runs(tmp_path / "a", text, runs, lambda counted: JsonValues(counted))


def test_what_json_gains_after_a_fault_is_reported(tmp_path: Path) -> None:
    path, counted, told = tmp_path / "a.json", Counted(), list[str]()
    path.write_text("[1,\n2x,\n3")
    kept = whole(path)
    records, ends = all_of(kept.splits, JsonValues(counted))
    assert records == [1] and len(counted.texts) == 1 and says(counted.texts[0], "rest of the file is left out")
    said = kept.remainders((), ends)
    report_left_out(resumed_input(said, plan_splits([str(path)])), plan_splits([str(path)]), told.append)
    assert told == [], "it has gained nothing"
    path.write_text(path.read_text() + "0,\n4]\n")
    for turn in range(2):
        said, found = recognized(said, plan_splits([str(path)]))
        kept = resumed_input(said, found)
        assert kept.to_read == ()
        report_left_out(kept, found, told.append)
        assert len(told) == turn + 1 and says(told[turn], "leaves out 6 bytes", "a.json", "after byte 9", "fault")
        said = kept.remainders(())
        compressed = tmp_path / "a.json.gz"
        compressed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    said, found = recognized(said, plan_splits([str(compressed)]))
    assert resumed_input(said, found).to_read == (), "its compressed copy"


def test_json_in_which_a_file_ends_is_named_with_its_line(tmp_path: Path) -> None:
    path, counted, texts = tmp_path / "a.json", Counted(), list[str]()
    path.write_text('[\n {"a": 1},\n {"a": 2},\n {"a": tr')
    format = JsonValues(counted, lambda kind, count, text: texts.append(text() if text else ""))
    assert all_of(whole(path).splits, format)[0] == [{"a": 1}, {"a": 2}]
    assert not counted.texts and says(*texts, "line 4 of", "Expecting value at column 8", "next run reads it again")
    assert "left out" not in texts[0]


def test_an_unfinished_record_of_a_file_that_is_gone_is_skipped_once(tmp_path: Path) -> None:
    path, other, told = tmp_path / "a.csv", written(tmp_path / "b.csv", 1), list[str]()
    path.write_text('a,b\n1,"x\n')
    kept = whole(path)
    [split] = kept.splits
    reader = reader_of(split, format=Csv(skip=Counted()))
    assert reader.next_batch() == [] and reader.open_from == 4
    said = kept.remainders((), {0: stopped(reader)})
    assert said[0].is_open and (said[0].start, said[0].end) == (4, 9)
    path.rename(tmp_path / "gone")
    for turn in range(2):
        resumed = resumed_input(said, plan_splits([other]))
        assert [each.path for each in resumed.to_read] == [other]
        report_gone(resumed, said, told.append)
        assert resumed.skipped == ({} if turn else {"": 1})
        said = resumed.noted(said)
    assert len(told) == 1 and says(told[0], "unfinished record", "a.csv", "gone")
    (tmp_path / "gone").rename(path)
    assert resumed_input(said, plan_splits([str(path)])).to_read[0].start == 4, "it is back"


def test_files_that_are_not_what_was_read_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1000)
    (split,) = (kept := whole(path)).splits
    half = read_of(split, 500)
    said = kept.remainders([half])
    gone = kept.remainders((), ended(split))
    written(tmp_path / "a", 999)
    with pytest.raises(StoreError, match="has shrunk from at least 11000 bytes to 10989; put back"):
        resumed_input(said, plan_splits([path]))
    Path(path).write_text("x" + LINE * 1000)
    with pytest.raises(StoreError, match="has changed in its first 5500 bytes, which were already read; put back"):
        resumed_input(said, plan_splits([path]))
    other = written(tmp_path / "b", 1)
    with pytest.raises(StoreError, match="up to byte 5500 of 11000 at the last checkpoint, and is not an input now"):
        resumed_input(said, plan_splits([other]))
    Path(path).write_text(LINE * 500 + "y" * 5500)
    assert resumed_input(said, plan_splits([path])).to_read == (half,), "what is not read yet may change"
    os.remove(path)
    assert resumed_input(gone, plan_splits([other])).to_read == (Split(1, other, 0, 11),), "it is read"


def test_a_finished_file_that_is_gone_is_kept_and_not_read_again(tmp_path: Path) -> None:
    path, other = written(tmp_path / "a", 100), written(tmp_path / "b", 1)
    said = (kept := whole(path)).remainders((), ended(*kept.splits))
    os.remove(path)
    for _ in range(2):
        resumed = resumed_input(said, plan_splits([other]))
        after = resumed.remainders((), ended(*resumed.to_read))
        assert after[0] == said[0], "a commit says it without reading the file"
        said = after
    written(tmp_path / "a", 100)
    assert resumed_input(said, plan_splits([path, other])).to_read == (), "it is back"
    Path(path).write_text("x" * 1100)
    with pytest.raises(StoreError, match=r"changed in its first 1100 bytes.*rename a new file that took its name"):
        resumed_input(said, plan_splits([path, other]))


def test_a_file_partly_read_and_gone_is_refused_or_forgotten(tmp_path: Path) -> None:
    path, other = written(tmp_path / "a", 1000), written(tmp_path / "b", 1)
    kept = whole(path, workers=1)
    rest = read_of(kept.splits[-1], 50)
    said = kept.remainders([rest], ended(*kept.splits[:-1]))
    os.rename(path, tmp_path / "elsewhere")
    why = rf"a' was read up to byte {rest.start} of 11000 .* is gone\. .*--forget-missing"
    with pytest.raises(StoreError, match=why):
        resumed_input(said, plan_splits([other]))
    for forget in (True, False):
        resumed = resumed_input(said, plan_splits([other]), forget)
        assert resumed.to_read == (Split(len(kept.splits), other, 0, 11),)
        said = resumed.noted(said)
        assert resumed.remainders(resumed.to_read)[:-1] == said, "the next run does not need the flag"
    os.rename(tmp_path / "elsewhere", path)
    assert resumed_input(said, plan_splits([path])).to_read == (rest,), "it is back"
    assert not any(each.forgotten for each in resumed_input(said, plan_splits([path])).remainders([rest]))


def test_a_commit_opens_no_file(tmp_path: Path) -> None:
    """The prints describe what was read, even if another file has its name by now."""
    path, done = written(tmp_path / "a", 1000), written(tmp_path / "b", 10)
    kept = whole(path, done)
    rest, prints = read_of(kept.splits[0], 500), ended(kept.splits[1])
    written(tmp_path / "b", 20)
    os.remove(path)
    said = kept.remainders([rest], prints)
    Path(done).write_text("x" * 200)
    with pytest.raises(StoreError, match="b' has changed in its first 110 bytes"):
        resumed_input(said[1:], plan_splits([done]))
    written(tmp_path / "a", 1000)
    written(tmp_path / "b", 10)
    assert resumed_input(said, plan_splits([path, done])).to_read == (rest,)


def test_a_file_that_is_gone_at_its_first_commit_may_come_back(tmp_path: Path) -> None:
    path, other = written(tmp_path / "a", 100), written(tmp_path / "b", 1)
    kept = whole(path, other)
    prints = ended(*kept.splits)
    os.remove(path)
    said = kept.remainders((), prints)
    assert resumed_input(said, plan_splits([other])).to_read == ()
    written(tmp_path / "a", 100)
    assert resumed_input(said, plan_splits([path, other])).to_read == ()


def test_a_file_gone_at_its_commit_in_an_old_store_must_not_come_back(tmp_path: Path) -> None:
    path, other = written(tmp_path / "a", 100), written(tmp_path / "b", 1)
    said = [SplitRemainder(0, path, 1100, 1100, GONE)]
    assert resumed_input(said, plan_splits([other])).to_read == (Split(1, other, 0, 11),)
    with pytest.raises(StoreError, match=r"a' was read to its end and was gone .* Remove it if it is, rename it"):
        resumed_input(said, plan_splits([path, other]))


def test_a_worker_refuses_a_split_of_a_file_that_was_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1000)
    rest = read_of(whole(path).splits[0], 500)
    assert len(read_all((rest,))) == 500
    os.rename(written(tmp_path / "new", 100, end=LINE.upper() + "x" * 11 * 899), path)
    with pytest.raises(SourceError, match="a' is another file now, or has changed in its first 5500 bytes"):
        read_all((rest,))


def test_a_file_may_grow_between_its_plan_and_its_opening(tmp_path: Path) -> None:
    data, path = b"a\nbb\r\nc\rdd\n", tmp_path / "a"
    ends = {number for number in range(len(data) + 1) if data[:number].endswith((b"\n", b"\r"))}
    for planned, opened, later in combinations_with_replacement(range(1, len(data) + 1), 3):
        path.write_bytes(data[:planned])
        kept = whole(path)
        path.write_bytes(data[:opened])
        lines = read_all(kept.to_read)
        first = max(planned, min({end for end in ends if end >= planned}))  # the end of the last line of the split
        assert lines == data[: min(first, opened)].decode().splitlines()
        said = kept.remainders((), ended(*kept.to_read))
        path.write_bytes(data[:later])
        if opened < later and opened not in ends and opened < first and data[opened:later] and opened + 1 not in ends:
            with pytest.raises(StoreUnfit, match="its last line has grown"):
                resumed_input(said, plan_splits([str(path)]))
            continue
        lines += read_all(resumed_input(said, plan_splits([str(path)])).to_read)
        assert lines == data[:later].decode().splitlines(), (planned, opened, later)


def test_a_job_continues_by_itself_if_a_file_in_splits_has_grown(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1000, end="012")
    kept = whole(path, workers=1)
    with open(path, "a") as file:
        file.write("3456789\n")
    first, *others = kept.to_read
    said = kept.remainders([first], ended(*others))
    again = input_again(kept, said)
    assert again.to_read == (first,)
    [grown] = resumed_input(again.remainders((), ended(first)), plan_splits([written(tmp_path / "a", 1002)])).to_read
    assert len(read_all((first, *others, grown))) == 1002


def test_an_unfinished_record_is_left_open_if_its_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text('1\n{"a":\n')
    kept = whole(path)
    reader = reader_of(kept.splits[0], format=JsonLines(skip=Counted()))
    reader._open()
    with open(path, "a") as file:
        file.write("2}\n3\n")
    assert reader.next_batch() == [1] and reader.next_batch() == []
    [rest] = resumed_input(kept.remainders((), {0: stopped(reader)}), plan_splits([str(path)])).to_read
    assert rest.start == 2


def test_a_compressed_file_goes_on_within_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data = gzip.compress("".join(f"{number * 2654435761 % 2**32}\n" for number in range(30_000)).encode())
    path.write_bytes(data)
    kept = whole(path)
    reader = reader_of(kept.splits[0])
    before = [line for _ in range(20) for line in reader.next_batch()]
    left = reader.rest(3)
    reader.close()
    assert left is not None and 0 < left.start < left.end and left.skip
    said, prints = kept.remainders([left]), ended(*kept.splits)
    resumed = resumed_input(said, plan_splits([str(path)]))
    assert resumed.to_read == (left,)
    assert len(before) - 3 + len(read_all(resumed.to_read)) == 30_000

    path.write_bytes(data + gzip.compress(b"more\n"))
    grown = resumed_input(said, plan_splits([str(path)])).to_read
    assert read_all(grown)[-1] == "more" and len(read_all(grown)) == 30_001 - len(before) + 3
    with pytest.raises(StoreError, match=r"a\.gz' was read to its end at byte .* a separate file"):
        resumed_input(kept.remainders([], prints), plan_splits([str(path)]))
    path.write_bytes(data[:99] + b"?" + data[100:])
    with pytest.raises(StoreError, match="has changed in its first"):
        resumed_input(said, plan_splits([str(path)]))


def test_a_file_is_kept_for_each_input_that_it_is_of(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1000)
    orders = find_input({"orders": path, "payments": path}, 1, "replace").splits
    assert [(split.number, split.input) for split in orders] == [(0, "orders"), (1, "payments")]
    kept = InputPositions(orders)
    left = read_of(kept.splits[0], 500)
    said = kept.remainders([left], ended(kept.splits[1]))
    assert [(each.input, each.start) for each in said] == [("orders", 5500), ("payments", 11000)]
    assert resumed_input(said, orders).to_read == (left,)
    again = find_input({"payments": path, "orders": path, "more": path}, 1, "replace").splits
    assert resumed_input(said, again).to_read == (left, Split(2, path, 0, 11000, "more")), "an input may be new"


@pytest.mark.parametrize(("then", "now"), [("orders", "sales"), ("", "orders"), ("orders", "")])
def test_a_file_that_has_become_another_input_is_refused_though_it_is_read(
    tmp_path: Path, then: str, now: str
) -> None:
    path = written(tmp_path / "a", 1000)
    (split,) = (replace(split, input=then) for split in plan_splits([path]))
    said = (kept := InputPositions([split])).remainders((), ended(*kept.splits))
    texts = [f"the lines '{name}'" if name else "lines without a name" for name in (then, now)]
    with pytest.raises(StoreError, match=f"was read as {texts[0]} before, and now as {texts[1]}. Name it as before"):
        resumed_input(said, [replace(split, input=now)])
    assert resumed_input(said, ()).to_read == (), "it is read"


@pytest.mark.parametrize("name", ["", "logs"])
def test_lines_of_followed_files_that_are_gone_are_refused_or_allowed(name: str, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    source = FollowedFiles(str(log))
    [inode] = source.discover().partitions
    reader = source.open(inode, None)
    while not isinstance(answer := reader.read(1), Idle) and not answer[0]:
        pass  # a position before the first line
    reader.close()
    assert not isinstance(answer, Idle) and answer[0] == ["one"]
    read = SourcePartition(0, name or "lines", encode(inode), encode(answer[1]))
    partitions = (read, SourcePartition(1, "other", b"", b""))
    commit, followed, told = Commit(1, 1, 1, 1, partitions=partitions), [(name, str(log), "")], list[str]()
    check_followed(commit, followed, False, told.append)
    log.unlink()
    with pytest.raises(StoreError, match=rf"not read: 4 of '{log}'\..*--allow-loss"):
        check_followed(commit, followed, False, told.append)
    check_followed(commit, followed, True, told.append)
    assert len(told) == 1 and says(told[0], "lost bytes", f"4 of '{log}'")
    (tmp_path / "app.log.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    check_followed(commit, followed, False, told.append)


def followed_commit(log: Path, name: str, lines: int) -> Commit:
    """Return the commit of second 10 of a job that has read `read` lines of a log."""
    source = FollowedFiles(str(log))
    [inode] = source.discover().partitions
    reader = source.open(inode, None)
    read, position = 0, None
    while read < lines or position is None:
        records, position = reader.read(lines - read or 1)  # type: ignore[misc]
        read += len(records)
    reader.close()
    partition = SourcePartition(0, name or "lines", encode(inode), encode(position))
    return Commit(1, 1, 1, 1, partitions=(partition,), written_at=10.0)


def compress(path: Path, text: bytes, modified: float) -> None:
    path.write_bytes(gzip.compress(text))
    os.utime(path, (modified, modified))


@pytest.mark.parametrize("name", ["", "logs"])
def test_a_log_compressed_before_it_was_seen_is_refused(name: str, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    commit, told = followed_commit(log, name, 1), list[str]()
    followed = [(name, f"{tmp_path}/app.log*", "")]
    compress(tmp_path / "app.log.2.gz", b"one\ntwo\nthree\n", 11.0)  # a copy of the log itself
    compress(tmp_path / "app.log.3.gz", b"zero\n", 4.0)  # older than the last look before the checkpoint
    compress(tmp_path / "other.gz", b"other\n", 11.0)
    (tmp_path / "app.log.4.gz").write_text("no gzip\n")
    (tmp_path / "app.log.5.gz").write_bytes(gzip.compress(b"damaged\n")[:12])
    compress(tmp_path / "app.log.6.gz", b"", 11.0)
    check_compressed(commit, followed, False, told.append)
    compress(tmp_path / "app.log.1.gz", b"four\n", 11.0)
    with pytest.raises(StoreError) as refused:
        check_compressed(commit, followed, False, told.append)
    text = str(refused.value)
    assert says(text, "cannot tell whether it has read", f"'{log}.1.gz'. If it has not", "decompress them")
    assert says(text, "decompress", "If it has read them", "again", "--allow-loss", "leaves them out")
    assert told == []
    check_compressed(commit, followed, True, told.append)
    assert len(told) == 1 and says(told[0], "skipping compressed files", f"'{log}.1.gz'")
    check_compressed(replace(commit, checkpoint=0), followed, False, told.append)


def test_a_log_written_just_before_a_stop_is_not_lost(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    commit = replace(followed_commit(log, "", 1), begun_at=10.0, written_at=100.0)
    compress(tmp_path / "app.log.2.gz", b"one\ntwo\nthree\n", 9.5)  # a copy of the log itself
    check_compressed(commit, [("", f"{log}*", "")], False, print)
    for modified in (9.5, 11.0):  # before the checkpoint began, but after the last look, and while it was written
        compress(tmp_path / "app.log.1.gz", b"four\n", modified)
        with pytest.raises(StoreError, match=r"app\.log\.1\.gz"):
            check_compressed(commit, [("", f"{log}*", "")], False, print)


def test_a_log_that_was_empty_at_the_checkpoint_is_no_copy(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.touch()
    source = FollowedFiles(str(log))
    [inode] = source.discover().partitions
    position = FilePosition(str(log), 0, "", 0, "").as_tuple()
    partitions = (SourcePartition(0, "lines", encode(inode), encode(position)),)
    commit = Commit(1, 1, 1, 1, partitions=partitions, written_at=10.0)
    compress(tmp_path / "app.log.1.gz", b"one\n", 11.0)
    with pytest.raises(StoreError, match=r"app\.log\.1\.gz"):
        check_compressed(commit, [("", f"{log}*", "")], False, print)


@pytest.mark.parametrize("before", [False, True])
def test_another_order_of_names_is_refused(tmp_path: Path, before: bool) -> None:
    path = tmp_path / "part-2"
    path.write_text("a\nb\n")
    splits = [replace(split, natural=before) for split in plan_splits([str(path)])]
    kept = InputPositions(splits)
    said = kept.remainders(kept.to_read)
    assert resumed_input(said, splits).splits[0].natural == before
    with pytest.raises(StoreUnfit, match=r"(?s)ordered-by=natural.*Give the same option"):
        resumed_input(said, [replace(split, natural=not before) for split in splits])

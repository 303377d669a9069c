"""A worker's input queue: the order of reading, the sizes of batches, and the reports."""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.reading.split_pool import spread
from megaflow.control.messages import CommitBatch, CommitTaken, PushedEnded, Split, SplitEnd
from megaflow.control.reading_messages import PartitionMissing, SplitRead
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.control.watermark_messages import Partition
from megaflow.errors import SourceError
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats.raw_file import NOTHING_READ, print_of
from megaflow.job.formats.text_lines import BATCH_BYTES, batches_of
from megaflow.job.launcher.inputs.pulled_source import packed
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.job.worker.reading.reading_pace import Schedule
from megaflow.job.worker.reading.staging import Staging
from tests.job.worker.scripted_source import Scripted, source_partitions
from tests.rights import without_rights


def take_all(feed: LineQueue, now: float = 0.0) -> list[str]:
    lines: list[str] = []
    while (taken := feed.take(now)) is not None:
        lines += taken[0]
    return lines


def stage_and_commit(staging: Staging, batch: int, lines: list[str]) -> None:
    staging.stage(StageLines("q", "r", batch, 0, 7, 0, len(lines), "\n".join(lines)), "executor")
    staging.end(StageEnd("q", "r", batch, 0, 7, 0, len(lines)), "executor")
    staging.commit(CommitBatch("q", "r", batch, {0: (0, 7, len(lines))}))


@given(lines=st.lists(st.text(max_size=200), max_size=200))
def test_batches_are_the_lines_in_order_and_about_as_long_as_wished(lines: list[str]) -> None:
    batches = list(batches_of(lines, sum(map(len, lines))))
    assert [line for batch in batches for line in batch] == lines
    assert all(batches)
    if lines:
        average = sum(map(len, lines)) / len(lines)
        assert all(len(batch) == 1 or len(batch) * average <= BATCH_BYTES for batch in batches)


def test_lines_of_all_splits_are_read_in_order_and_each_split_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("".join(f"line {i}\n" for i in range(10_000)))
    splits = plan_splits([str(path)], 1)
    feed = LineQueue(Staging(0))
    feed.assign(splits)
    lines, reports = [], []
    while (taken := feed.take(0.0)) is not None:
        lines += taken[0]
        reports += [(report.number, len(lines)) for report in feed.take_reports()]
    assert lines == [f"line {i}" for i in range(10_000)]
    assert [number for number, _ in reports] == [split.number for split in splits]
    assert reports[-1] == (splits[-1].number, 10_000)
    assert all(
        len("".join(lines[:count]).encode()) + count >= split.end for split, (_, count) in zip(splits, reports)
    ), "a split is reported when all its lines are taken, not before"


def test_pushed_lines_earn_credit_when_taken_and_their_end_is_reported_after_them() -> None:
    feed = LineQueue(Staging(0))
    feed.push(["a"] * 8000)
    feed.push(["b"])
    feed.end_pushed()
    assert feed.take_reports() == []
    first = feed.take(0.0)
    assert first is not None
    assert len(first[0]) == 6144
    assert feed.take_credit() == 6144
    assert take_all(feed) == ["a"] * 1856 + ["b"]
    assert feed.take_credit() == 1857
    assert feed.take_reports() == [PushedEnded()]
    assert feed.take_reports() == []


def test_what_is_pushed_waits_for_one_batch_of_a_file_and_no_file_waits_for_more_of_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\n" * 30_000)
    feed = LineQueue(Staging(0))
    feed.assign(plan_splits([str(tmp_path / "text")]))
    stage_and_commit(feed.staging, 0, ["s"] * 10)
    found = ""
    while (some := feed.take(0.0)) is not None:
        found += some[0][0]
        if len(found) == 1:
            feed.push(["p"] * 20_000)
            feed.end_pushed()
    assert re.fullmatch("s(ap){4}a+", found)
    assert [type(report) for report in feed.take_reports()] == [CommitTaken, PushedEnded, SplitRead]


def test_credit_is_for_what_was_taken_and_not_for_what_was_looked_at() -> None:
    feed = LineQueue(Staging(0), rate=1.0)
    feed.push(["a", "b"])
    assert feed.ready and feed.take_credit() == 0
    assert feed.take(0.0) == (["a"], 0.0) and feed.take_credit() == 1


def test_items_are_values_again_when_they_are_taken_and_come_in_small_batches() -> None:
    feed = LineQueue(Staging(0))
    items = [("ada", {"n": number}) for number in range(1000)]
    feed.push([*map(packed, items)], "clicks")
    first = feed.take(0.0)
    assert first is not None and len(first[0]) < 300 and feed.input == "clicks"
    assert first[0] + take_all(feed) == items and feed.taken_of["clicks"] == 1000


def test_an_item_of_a_class_that_is_not_known_is_refused_with_its_input() -> None:
    module = ModuleType("gone_module")
    sys.modules[module.__name__] = module
    exec("from dataclasses import dataclass\n@dataclass\nclass Click:\n    n: int", vars(module))
    try:
        encoded = packed(module.Click(1))
    finally:
        del sys.modules[module.__name__]
    feed = LineQueue(Staging(0))
    feed.push([encoded], "clicks")
    with pytest.raises(SourceError, match=r"Cannot read an item of the input 'clicks' here: .*gone_module\.Click"):
        feed.take(0.0)


def test_pushed_lines_may_come_after_a_pause() -> None:
    feed = LineQueue(Staging(0))
    assert feed.due_in(0.0) is None
    feed.push(["a"])
    assert take_all(feed) == ["a"]
    assert feed.due_in(0.0) is None
    feed.push(["b"])
    assert feed.due_in(0.0) == 0.0
    assert take_all(feed) == ["b"]


def test_a_commit_is_reported_only_when_its_last_line_is_handed_out() -> None:
    staging = Staging(0)
    feed = LineQueue(staging)
    stage_and_commit(staging, 0, ["a", "b"])
    assert feed.ready
    assert feed.take_reports() == [], "the lines are looked up, but nobody has them"
    assert take_all(feed) == ["a", "b"]
    assert feed.take_reports() == [CommitTaken("q", 0)]
    stage_and_commit(staging, 1, ["c"])
    assert take_all(feed) == ["c"]
    assert feed.take_reports() == [CommitTaken("q", 1)]


def test_with_a_rate_lines_come_when_they_are_due_and_a_late_reader_catches_up() -> None:
    feed = LineQueue(Staging(0), rate=20.0, share=0.5)
    feed.push([str(i) for i in range(100)])
    assert feed.take(50.0) == (["0"], 50.0), "the first line is due at once"
    assert feed.take(50.05) is None
    assert feed.due_in(50.05) == pytest.approx(0.05)
    assert feed.take(50.11) == (["1"], 50.1), "its time is when it was due, not when it was read"
    assert feed.take(51.01) == ([str(i) for i in range(2, 11)], 50.2)


def test_lines_that_are_due_and_not_read_are_known_where_there_is_a_rate() -> None:
    feed = LineQueue(Staging(0), rate=10.0, share=0.5)
    assert feed.waiting(0.0) == 0, "nothing to read"
    feed.push(["x"] * 200)
    assert feed.ready and feed.waiting(0.0) == 0, "the rate begins with the first line that is read"
    take_all(feed, 0.0)
    assert [feed.waiting(now) for now in (0.0, 0.3, 4.1)] == [0, 1, 20]
    take_all(feed, 4.1)
    assert feed.waiting(4.1) == 0
    take_all(feed, 1000.0)
    assert feed.waiting(2000.0) == 0, "there are no more"
    eager = LineQueue(Staging(0))
    eager.push(["x"])
    assert eager.ready and eager.waiting(0.0) is None, "nobody says how many are due"
    take_all(eager)
    assert eager.waiting(0.0) == 0


def test_who_has_splits_reads_its_part_of_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x\n" * 1000)
    feed = LineQueue(Staging(0), rate=100.0, share=0.5)
    feed.assign(plan_splits([str(path)], 1))
    feed.share_rate(10)
    feed.take(0.0)
    assert len(take_all(feed, 10.05)) == 100


def test_a_schedule_has_no_line_due_before_it_starts() -> None:
    assert Schedule(10.0, 5.0).due(4.0) == 0


def test_closing_drops_what_is_unread(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x\n" * 10_000)
    feed = LineQueue(Staging(0))
    feed.assign(plan_splits([str(path)], 1))
    feed.push(["y"])
    feed.take(0.0)
    feed.close()
    assert not feed.ready
    assert feed.take_reports() == []


def hide(path: Path, how: str) -> None:
    """Make a file one that this process cannot open."""
    if how == "gone":
        path.unlink()
    elif how == "no right":
        path.chmod(0)
    else:
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("a file in place of the folder\n")


REASONS = pytest.mark.parametrize(
    "how, why", [("gone", "No such file"), ("no right", "Permission denied"), ("no folder", "Not a directory")]
)


@REASONS
def test_split_that_cannot_be_opened_is_passed_over(tmp_path: Path, how: str, why: str) -> None:
    paths = [tmp_path / name / "text" for name in "abc"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"{path}, 1\n{path}, 2\n")
    feed = LineQueue(Staging(0))
    feed.assign(splits := [replace(split, start=len(f"{paths[0]}, 1\n")) for split in plan_splits(map(str, paths))])
    hide(paths[1], how)
    with without_rights():
        assert take_all(feed) == [f"{paths[0]}, 2", f"{paths[2]}, 2"]
        assert feed.take_reports() == [SplitRead(0), PartitionMissing(1), SplitRead(2)]
        assert feed.remainders() == (splits[1],) and ("split", 1) in feed.partitions()
        assert not feed.ready and feed.take_reports() == [], "it is reported once"
        assert [*feed.empty(9.0)] == [], "it is not idle"
        feed.stay(7)
        assert not feed.ready, "another split"
        feed.stay(1)
        with pytest.raises(SourceError, match=why):
            feed.take(0.0)


def test_missing_split_is_handed_back_and_read_elsewhere(tmp_path: Path) -> None:
    (path := tmp_path / "text").write_text("a\nb\n")
    [split] = plan_splits([str(path)])
    one, other = LineQueue(Staging(0)), LineQueue(Staging(1))
    one.assign([split])
    path.chmod(0)
    with without_rights():
        assert not one.ready
    assert one.give_back([split.number]) == (split,) and not one.remainders()
    one.stay(split.number)
    assert not one.ready, "it is not here"
    path.chmod(0o600)
    other.assign([split])
    assert take_all(other) == ["a", "b"]


def test_split_that_can_be_opened_at_last_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "text").write_text("a\n")
    feed = LineQueue(Staging(0))
    feed.assign(plan_splits([str(path)]))
    path.rename(hidden := tmp_path / "hidden")
    assert not feed.ready
    hidden.rename(path)
    feed.stay(0)
    assert take_all(feed) == ["a"]


@given(
    lines=st.lists(st.text("ab\u00e9\ufffd", max_size=30), min_size=1, max_size=400),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(1, 40), max_size=20),
)
def test_splits_that_are_handed_back_hold_exactly_the_lines_not_taken(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("feed") / "text"
    path.write_bytes("".join(line + end for line in lines).encode())
    size = path.stat().st_size
    splits = [Split(0, str(path), 0, size // 2), Split(1, str(path), size // 2, size)]
    feed, taken, now = LineQueue(Staging(0), rate=1.0), [], 0.0
    feed.assign(splits)
    for lines_due in cuts:
        now += lines_due
        got = feed.take(now)
        taken += got[0] if got else []
    rest = feed.give_back()
    read = {report.number for report in feed.take_reports() if isinstance(report, SplitRead)}
    assert read.isdisjoint(split.number for split in rest), "a split is read or handed back, never both"
    assert not feed.ready
    other = LineQueue(Staging(1))
    other.assign(rest)
    assert taken + take_all(other) == lines
    read |= {report.number for report in other.take_reports() if isinstance(report, SplitRead)}
    assert read == {0, 1}


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.sampled_from(["take"] * 3 + ["join", "leave"]), st.integers(0, 5)), max_size=40),
)
def test_each_file_is_read_in_its_order_while_workers_come_and_go(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    wanted = {str(n): [f"{n} {line}".ljust(BATCH_BYTES // 10) for line in range(size)] for n, size in enumerate(sizes)}
    for name, lines in wanted.items():
        (folder / name).write_text("".join(line + "\n" for line in lines))
    splits = plan_splits([str(folder / name) for name in wanted])
    queues = {worker: LineQueue(Staging(worker)) for worker in range(2)}
    seen: dict[str, list[str]] = {name: [] for name in wanted}

    def deal(splits: Iterable[Split], workers: Iterable[int]) -> None:
        for worker, some in spread(splits, sorted(workers)).items():
            queues[worker].assign(some)

    def take(worker: int) -> bool:
        lines, _ = queues[worker].take(0.0) or ([], 0.0)
        for line in lines:
            seen[line.split()[0]].append(line)
        return bool(lines)

    deal(splits, queues)
    for joiner, (step, number) in enumerate(steps, start=2):
        worker = sorted(queues)[number % len(queues)]
        if step == "take":
            take(worker)
        elif step == "join":
            queues[joiner] = LineQueue(Staging(joiner))
        elif len(queues) > 1:
            rest = queues.pop(worker).give_back()
            deal(rest, queues)
    for worker in queues:
        while take(worker):
            pass
    assert seen == wanted


def test_committed_lines_stay_when_splits_are_handed_back(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x\n" * 100_000)
    staging = Staging(0)
    feed = LineQueue(staging)
    feed.assign(plan_splits([str(path)], 1))
    assert feed.take(0.0) is not None
    stage_and_commit(staging, 0, ["a", "b"])
    rest = feed.give_back()
    assert [split.number for split in rest] == list(range(4))
    assert rest[0].start > 0
    assert take_all(feed) == ["a", "b"]
    assert feed.take_reports() == [CommitTaken("q", 0)]


def test_a_rate_is_shared_anew_when_splits_change_hands_and_nothing_is_owed_for_a_time_without(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x\n" * 100_000)
    first, second = LineQueue(Staging(0), rate=100.0), LineQueue(Staging(1), rate=100.0)
    splits = plan_splits([str(path)], 1)
    first.assign(splits[:2])
    first.share_rate(1)
    assert len(take_all(first, 0.0) + take_all(first, 10.0)) == 1001
    second.assign(first.give_back([1]))
    first.share_rate(2), second.share_rate(2)
    assert take_all(first, 10.0) == [], "what comes after the next line comes at half the rate"
    assert take_all(second, 10.0) == ["x"], "it begins when there is something to read"
    assert len(take_all(first, 20.0)) == len(take_all(second, 20.0)) == 500
    second.assign(first.give_back())
    second.share_rate(1)
    assert take_all(first, 20.0) == take_all(second, 20.0) == []
    assert len(take_all(second, 30.0)) == 1000, "now it reads the whole rate"
    first.assign(second.give_back([0]))
    first.share_rate(2), second.share_rate(2)
    assert take_all(first, 50.0) == ["x"], "20 seconds without splits are forgotten"
    assert len(take_all(first, 51.0)) == 50


def test_some_splits_are_handed_back_and_the_others_are_read(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        Path(name).write_text("".join(f"{name[-1]}{line}".ljust(BATCH_BYTES) + "\n" for line in range(3)))
    feed = LineQueue(Staging(0))
    feed.assign(plan_splits(names))
    taken = feed.take(0.0)
    assert taken is not None and [line.strip() for line in taken[0]] == ["a0"]
    (rest,) = feed.give_back([2])
    assert (rest.number, rest.start) == (2, 0), "one that waits"
    (rest,) = feed.give_back([0, 2])
    assert (rest.number, rest.start) == (0, BATCH_BYTES + 1), "one in the midst of being read, and one that is gone"
    assert feed.take_reports() == [], "neither is read"
    assert [line.strip() for line in take_all(feed)] == ["b0", "b1", "b2"]
    feed.assign([rest])
    assert [line.strip() for line in take_all(feed)] == ["a1", "a2"], "it may come back, and goes on"
    assert feed.take_reports() == [SplitRead(1), SplitRead(0)]


def test_without_splits_the_rate_is_shared_by_all_workers() -> None:
    feed = LineQueue(Staging(0), rate=100.0)
    feed.share_alike(4)
    feed.push([str(i) for i in range(1000)])
    assert len(take_all(feed, 0.0) + take_all(feed, 2.0)) == 51
    feed.share_alike(2)
    assert take_all(feed, 2.0) == []
    assert len(take_all(feed, 4.0)) == 100


def test_what_is_taken_is_of_one_partition_which_is_known(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\n")
    feed = LineQueue(Staging(0))
    feed.open_partitions.sources["numbers"] = Scripted(p=[1])
    feed.add_partitions(source_partitions("p"))
    feed.assign([replace(plan_splits([str(tmp_path / "text")], 1)[0], number=7)])
    feed.push(["b"])
    feed.push([packed(1)], "clicks")
    stage_and_commit(feed.staging, 0, ["c"])
    assert feed.partitions() == {("partition", -1), ("split", 7)}
    taken = {}
    while (some := feed.take(0.0)) is not None:
        taken[feed.partition] = some[0]
    assert taken == {
        ("partition", -1): ["p0"], ("split", 7): ["a"], ("spark", "q"): ["c"], ("pushed", ""): ["b"],
        ("items", "clicks"): [1],
    }  # fmt: skip


def test_what_has_nothing_to_read_is_known_of_what_is_pushed_here(tmp_path: Path) -> None:
    feed = LineQueue(Staging(0))
    feed.pushed.partitions = (("pushed", ""),)
    assert [*feed.empty(1.0)] == [], "it is pushed elsewhere"
    feed.expect_pushed()
    feed.push(["a", "b"])
    assert [*feed.empty(2.0)] == []
    assert feed.take(2.0, 1) == (["a"], 2.0) and [*feed.empty(3.0)] == [], "some of it is not taken"
    assert feed.take(3.0, 1) == (["b"], 3.0) and [*feed.empty(4.0)] == [(("pushed", ""), 4.0)]
    assert [*feed.empty(5.0)] == [(("pushed", ""), 4.0)] and feed.partitions() == {("pushed", "")}


class Clocks:
    """Event time in the test's hands: a partition's bound is the greatest value taken, if it is known at all."""

    are_wanted = True

    def __init__(self) -> None:
        self.bounds: dict[Partition, int] = {}

    def bound(self, partition: Partition) -> int | None:
        return self.bounds.get(partition)

    def is_idle(self, partition: Partition) -> bool:
        return False


def long_lines(path: Path, seconds: Iterable[int]) -> Split:
    """A file with one line in each batch, which begins with a second."""
    path.write_text("".join(f"{second:06} ".ljust(BATCH_BYTES) + "\n" for second in seconds))
    return replace(plan_splits([str(path)])[0], input=path.name[0])


def read_all(feed: LineQueue, clocks: Clocks | None = None, now: float = 0.0) -> list[tuple[str, int]]:
    """Take all batches; return the input and second of each."""
    found = []
    while (taken := feed.take(now)) is not None:
        second = int(taken[0][0].split()[0])
        found.append((feed.input, second))
        if clocks is not None:
            clocks.bounds[feed.partition] = second
    return found


def test_inputs_are_read_by_event_time_one_file_of_each_at_once(tmp_path: Path) -> None:
    feed, clocks = LineQueue(Staging(0)), Clocks()
    feed.turns.progress = clocks
    files = {"a0": range(0, 50, 10), "a1": range(50, 100, 10), "b0": range(100)}
    feed.assign([replace(long_lines(tmp_path / name, some), number=n) for n, (name, some) in enumerate(files.items())])
    read = read_all(feed, clocks)
    assert [second for input, second in read if input == "a"] == [*range(0, 100, 10)]
    assert [second for input, second in read if input == "b"] == [*range(100)]
    front = {"a": 0, "b": 0}
    for input, second in read:
        front[input] = second
        assert abs(front["a"] - front["b"]) <= 21, "two batches of the sparse input are 20 seconds"
    reports = [each.number for each in feed.take_reports() if isinstance(each, SplitRead)]
    assert sorted(reports) == [0, 1, 2] and reports.index(0) < reports.index(1)


def test_inputs_without_timestamps_are_read_in_turn(tmp_path: Path) -> None:
    feed = LineQueue(Staging(0))
    files = {"a0": range(6), "a1": range(6, 9), "b0": range(4), "c0": range(2)}
    feed.assign([replace(long_lines(tmp_path / name, some), number=n) for n, (name, some) in enumerate(files.items())])
    assert "".join(input for input, _ in read_all(feed)) == "abcabcababaaaaa"


def test_held_input_goes_on_once_the_slower_one_has_nothing(tmp_path: Path) -> None:
    feed, clocks = LineQueue(Staging(0)), Clocks()
    feed.turns.progress = clocks
    feed.assign([long_lines(tmp_path / "a0", range(100, 103)), replace(long_lines(tmp_path / "b0", [1, 2]), number=1)])
    taken = [feed.take(now) for now in (0.0, 0.0)]
    assert all(taken)
    clocks.bounds |= {("split", 0): 100, ("split", 1): 1}
    feed.take(1.0), feed.take(5.0)
    assert read_all(feed, now=9.0)[-1] == ("a", 102) and not feed.ready
    assert 3.0 <= feed.waited <= 8.0, "the seconds for which a was held do not count as idle"


def test_file_above_its_limit_waits_for_other_limits(tmp_path: Path) -> None:
    feed, clocks = LineQueue(Staging(0)), Clocks()
    feed.turns.progress = clocks
    feed.turns.limits = {"a": 5}
    feed.assign([long_lines(tmp_path / "a0", range(20))])
    read = read_all(feed, clocks)
    assert 5 <= len(read) - 1 <= 7 and not feed.ready and feed.due_in(0.0) is None
    (rest,) = feed.remainders()
    assert rest.start == len(read) * (BATCH_BYTES + 1), "a checkpoint has what is left"
    feed.turns.limits = {"a": 1 << 40}
    assert [second for _, second in read + read_all(feed, clocks)] == [*range(20)]
    assert feed.take_reports() == [SplitRead(0)]


def test_last_pushed_lines_are_not_held(tmp_path: Path) -> None:
    feed, clocks = LineQueue(Staging(0)), Clocks()
    feed.turns.progress = clocks
    clocks.bounds = {("split", 0): 1, ("pushed", "p"): 1000}
    feed.assign([long_lines(tmp_path / "a0", range(40))])
    feed.expect_pushed()
    feed.push([f"{second} ".ljust(BATCH_BYTES) for second in range(1000, 1003)], "p")
    taken = [feed.take(0.0) and feed.input for _ in range(10)]
    assert taken[1:] == ["a"] * 9 and [*feed.empty(0.0)] == [], "it is held, and so nothing that is pushed is idle"
    feed.end_pushed()
    taken = [feed.take(0.0) and feed.input for _ in range(8)]
    assert taken.count("p") >= 2 and PushedEnded() in feed.take_reports(), "a stop does not wait for the file"


def test_what_is_taken_is_of_one_input_which_is_known(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\ntwo\n")
    (split,) = plan_splits([str(tmp_path / "text")])
    feed = LineQueue(Staging(0))
    feed.push(["three"], "pushed")
    feed.assign([replace(split, input="split")])
    taken = []
    while (batch := feed.take(0.0)) is not None:
        taken.append((feed.input, *batch[0]))
    assert taken == [("pushed", "three"), ("split", "one", "two")]
    feed.push(["four"])
    assert feed.take(0.0) is not None and feed.input == ""
    assert feed.taken_of == {"split": 2, "pushed": 1} and feed.lines_taken == 4


def test_split_that_is_taken_is_reported_with_its_print_before_its_turn(tmp_path: Path) -> None:
    """A checkpoint does not list it among the rest, so it needs the print."""
    feed = LineQueue(Staging(0))
    short, long = (long_lines(tmp_path / name, seconds) for name, seconds in (("a0", [1]), ("b0", range(9))))
    feed.assign([replace(short, print=NOTHING_READ), replace(long, number=1, print=NOTHING_READ)])
    while feed.take_reports(may_look=False) == [] and (taken := feed.take(0.0)):
        if feed.input == "a" and taken:
            assert feed.ready
            [rest] = feed.remainders()
            break
    assert rest.number == 1 and rest.print == print_of(long.path, rest.start)
    assert feed.take_reports(may_look=False) == [SplitRead(0, (), SplitEnd(print_of(short.path, short.end)))]

"""Lines of JSON become values, and what cannot be parsed is named by its file and line, wherever reading began."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.json_format import JsonLines
from megaflow.job.record_format import RecordFormat
from megaflow.job.splits import plan_splits
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.staging import Staging

CASES = Path(__file__).parent.parent / "cases"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}


def queue_of(*splits: Split, format: RecordFormat) -> LineQueue:
    queue = LineQueue(Staging(0))
    queue.streams.formats[""] = format
    queue.assign(splits)
    return queue


def read(queue: LineQueue, batches: int = 10_000) -> list[Any]:
    """Return the records of a queue, of some of its batches at most."""
    records = []
    for _ in range(batches):
        if (taken := queue.take(0.0)) is None:
            break
        records += taken[0]
    return records


class Counted:
    """Counts faults, as a job does that skips them."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: Callable[[], str]) -> None:
        self.texts.append(text())


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_faulty_line_is_named_wherever_reading_began(tmp_path: Path, suffix: str, end: str) -> None:
    path = tmp_path / f"orders.jsonl{suffix}"
    lines = [json.dumps({"id": number, "name": "é" * 20}) for number in range(5000)]
    lines[10], lines[4242] = "", '{"id": 4242,'
    path.write_bytes(COMPRESS[suffix](("\ufeff" + end.join(lines)).encode()))
    why = rf"line 4243 of '.*orders.jsonl{suffix}' is not JSON: .* the line is '{{\"id\": 4242,'\. on_error='skip'"
    read_before = list[Any]()
    queue = queue_of(*plan_splits([str(path)]), format=JsonLines())
    with pytest.raises(SourceError, match=why):
        while (taken := queue.take(0.0)) is not None:
            read_before += taken[0]
    assert [each["id"] for each in read_before] == [n for n in range(4242) if n != 10], "all before it come first"
    queue = queue_of(*plan_splits([str(path)], 2), format=JsonLines())
    first = read(queue, batches=20)
    left = queue.give_back()
    with pytest.raises(SourceError, match=why):
        read(queue_of(*left, format=JsonLines()))
    rest = read(queue_of(*left, format=JsonLines(Counted())))
    assert [each["id"] for each in first + rest] == [n for n in range(5000) if n not in (10, 4242)]


def test_faults_are_counted_once_though_workers_hand_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{number}\n{{\n" if number % 7 else "\n" for number in range(4000)))
    for batches in (1, 3, 10):
        counted, records = Counted(), list[Any]()
        splits = tuple(plan_splits([str(path)]))
        while splits:
            queue = queue_of(*splits, format=JsonLines(counted))
            records += read(queue, batches)
            splits = queue.give_back()
        assert records == [number for number in range(4000) if number % 7]
        assert len(counted.texts) == len(records) and "line 5 of" in counted.texts[1]


def test_a_faulty_line_of_the_launcher_is_named_by_its_number() -> None:
    for from_the_first, what in ((True, "line 3 of the launcher's input"), (False, "a line that is from no file")):
        queue = queue_of(format=JsonLines())
        queue.expect_pushed(from_the_first)
        queue.push(["1", "2"])
        queue.push(["x"])
        with pytest.raises(SourceError, match=f"^{what} is not JSON: Expecting value at column 1; the line is 'x'"):
            read(queue)


@pytest.mark.parametrize("name", ["array.json", "array_lines.json", "pretty.json"])
@pytest.mark.parametrize("skip", [None, Counted()])
def test_a_file_that_is_one_json_value_is_refused(name: str, skip: Any) -> None:
    with pytest.raises(SourceError, match=rf"{name}' is one JSON value rather than one value per line\. .*json\.load"):
        read(queue_of(*plan_splits([str(CASES / name)]), format=JsonLines(skip)))


@pytest.mark.parametrize("name", ["array_lines.json", "pretty.json"])
@pytest.mark.parametrize("at_once", [True, False])
def test_one_json_value_is_refused_where_the_launcher_reads(name: str, at_once: bool) -> None:
    queue = queue_of(format=JsonLines(Counted()))
    queue.expect_pushed(True)
    lines = (CASES / name).read_text().splitlines()
    records = list[Any]()
    with pytest.raises(SourceError, match=r"the input is one JSON value"):
        for some in [lines] if at_once else [[line] for line in lines]:
            queue.push(some)
            records += read(queue)
    assert records == []


def test_a_first_line_that_is_broken_waits_for_the_second() -> None:
    for rest, found in (([], 1), (['{"a": 2}'], 1)):
        counted = Counted()
        queue = queue_of(format=JsonLines(counted))
        queue.expect_pushed(True)
        queue.push(["", '{"a": 1,'])
        assert read(queue) == [] and not counted.texts
        queue.push(rest)
        queue.end_pushed()
        assert read(queue) == [json.loads(line) for line in rest] and len(counted.texts) == found
        assert "line 2 of the launcher's" in counted.texts[0]


def test_a_value_over_many_lines_is_refused_at_any_position(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"a": number} for number in range(9000)], indent=1))
    for split in plan_splits([str(path)], 1):
        with pytest.raises(SourceError, match="one JSON value"):
            read(queue_of(split, format=JsonLines(Counted())))


def test_lines_that_begin_with_a_broken_one_are_still_lines(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.jsonl", Counted()
    for text in ('{"a": 1,\n{"a": 2}\n', '[1, 2\n[3]\n{"a": 2}\n', '{"a": "x\n{"a": 2}\n'):
        path.write_text(text)
        assert read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted)))[-1] == {"a": 2}
    path.write_text('[1, 2]\n[3, 4]\n')
    assert read(queue_of(*plan_splits([str(path)]), format=JsonLines())) == [[1, 2], [3, 4]]


def test_a_trailing_comma_is_a_fault_of_its_line() -> None:
    counted = Counted()
    splits = plan_splits([str(CASES / "trail.json")])
    assert read(queue_of(*splits, format=JsonLines(counted))) == [{"a": 2}] and len(counted.texts) == 1
    with pytest.raises(SourceError, match=r"line 1 of '.*trail.json' is not JSON: Extra data"):
        read(queue_of(*splits, format=JsonLines()))


def test_a_carriage_return_ends_a_line_of_json() -> None:
    assert read(queue_of(*plan_splits([str(CASES / "cr.json")]), format=JsonLines())) == [{"a": 1}, {"a": 2}]

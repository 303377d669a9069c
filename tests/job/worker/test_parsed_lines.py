"""Lines become records, and what cannot be parsed is named by its file and line, wherever reading has begun."""

import bz2
import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megaflow.control.messages import Split
from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.job.splits import plan_splits
from megaflow.job.worker.flow import Flow
from megaflow.job.worker.line_place import LinePlace
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.named_inputs import SkippedLines
from megaflow.job.worker.parsed_lines import CsvParser, LineParser
from megaflow.job.worker.staging import Staging
from megaflow.testing import Join, Leave, SimulatedCluster
from megaflow.timely import example

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}


def queue_of(*splits: Split) -> LineQueue:
    queue = LineQueue(Staging(0))
    queue.assign(splits)
    return queue


def read(queue: LineQueue, parser: LineParser, batches: int = 10_000) -> list[Any]:
    """Return what the lines of a queue become, some of its batches at most."""
    records = []
    for _ in range(batches):
        if (taken := queue.take(0.0)) is None:
            break
        records += parser(("", taken[0], queue.place(len(taken[0]))))
    return records


def csv_parser(header: Any = True, as_: Any = dict, delimiter: str = ",", on_error: Any = "raise") -> CsvParser:
    return CsvParser("", on_error, header, as_, delimiter, '"', SkippedLines())


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_that_is_not_json_is_named_by_its_number_wherever_reading_began(
    tmp_path: Path, suffix: str, end: str
) -> None:
    path = tmp_path / f"orders.jsonl{suffix}"
    lines = [json.dumps({"id": number, "name": "é" * 20}) for number in range(5000)]
    lines[10], lines[4242] = "", '{"id": 4242,'
    path.write_bytes(COMPRESS[suffix](("\ufeff" + end.join(lines)).encode()))
    why = rf"line 4243 of '.*orders.jsonl{suffix}' is not JSON: .* the line is '{{\"id\": 4242,'\. on_error='skip'"
    with pytest.raises(SourceError, match=why):
        read(queue_of(*plan_splits([str(path)])), LineParser("", "raise", SkippedLines()))
    queue = queue_of(*plan_splits([str(path)], 2))
    first = read(queue, LineParser("", "raise", SkippedLines()), batches=20)
    left = queue.give_back()
    with pytest.raises(SourceError, match=why):
        read(queue_of(*left), LineParser("", "raise", SkippedLines()))
    rest = read(queue_of(*left), LineParser("", "skip", SkippedLines()))
    assert [each["id"] for each in first + rest] == [n for n in range(5000) if n not in (10, 4242)]


def test_lines_that_are_skipped_are_counted_and_the_first_one_of_an_input_is_told(tmp_path: Path) -> None:
    path, told = tmp_path / "orders.csv", list[str]()
    path.write_text("a,b\n1,2\n\n3\n4,5\n6,7,8\n'")
    skipped = SkippedLines(lambda about, text: told.append(f"{about}: {text}"))
    csv_lines = CsvParser("", "skip", True, tuple, ",", '"', skipped)
    assert read(queue_of(*plan_splits([str(path)])), csv_lines) == [("1", "2"), ("4", "5")]
    assert skipped.counts == {"": 3}
    assert told == [
        f"lines of '': line 4 of '{path}' is not a row of CSV: it has 1 fields, and there are 2 columns; the line is "
        "'3'; it is skipped, as others are that cannot be parsed: control status counts them"
    ]
    LineParser("orders", "skip", skipped)(("orders", ["{", "{}", "}"], LinePlace(lines=6)))
    assert skipped.counts == {"": 3, "orders": 2}
    assert len(told) == 2 and told[1].startswith("lines of 'orders': line 7 of what")


def test_what_the_launcher_reads_has_lines_too_while_the_same_process_reads_them() -> None:
    for from_the_first, what in ((True, "line 3 of what the launcher reads"), (False, "a line that came from no file")):
        queue = LineQueue(Staging(0))
        queue.expect_pushed(from_the_first)
        queue.push(["1", "2"])
        queue.push(["x"])
        with pytest.raises(SourceError, match=f"^{what} is not JSON: Expecting value at column 1; the line is 'x'"):
            read(queue, LineParser("", "raise", SkippedLines()))


class Order(NamedTuple):
    amount: str
    customer: str


@pytest.mark.parametrize("suffix", COMPRESS)
def test_rows_are_what_the_standard_library_reads_however_the_file_is_cut(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"orders.csv{suffix}"
    rows = [(f'a "{number}", é', str(number)) for number in range(2000)]
    text = 'customer,amount\n\n' + "".join('"' + a.replace('"', '""') + f'",{b}\r\n' for a, b in rows)
    path.write_bytes(COMPRESS[suffix](("\ufeff" + text).encode()))
    assert [*csv.reader(text.splitlines())][2:] == [*map(list, rows)]
    kinds: dict[Any, Callable[[str, str], Any]] = {
        dict: lambda a, b: {"customer": a, "amount": b}, tuple: lambda a, b: (a, b), Order: lambda a, b: Order(b, a)
    }  # fmt: skip
    for kind, make in kinds.items():
        splits = plan_splits([str(path)], 3)
        assert len(splits) > 3 or suffix
        wanted = [make(*row) for row in rows]
        assert [each for split in splits for each in read(queue_of(split), csv_parser(as_=kind))] == wanted
        assert read(queue_of(*splits), csv_parser(as_=kind)) == wanted
    queue = LineQueue(Staging(0))
    queue.expect_pushed(True)
    queue.push(text.splitlines())
    assert read(queue, csv_parser(as_=tuple)) == rows


def test_each_file_names_its_own_columns_or_the_program_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k;n\na;1\n")
    (tmp_path / "b.csv").write_text("n;k\n2;b\n")
    splits = plan_splits([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert read(queue_of(*splits), csv_parser(delimiter=";")) == [{"k": "a", "n": "1"}, {"n": "2", "k": "b"}]
    assert read(queue_of(splits[0]), csv_parser(header=["x", "y"], delimiter=";"))[1] == {"x": "a", "y": "1"}
    assert read(queue_of(splits[0]), csv_parser(header=False, as_=tuple)) == [("k;n",), ("a;1",)]
    with pytest.raises(SourceError, match=r"a\.csv' has the columns k, n, and Order has the fields amount, customer"):
        read(queue_of(splits[0]), csv_parser(as_=Order, delimiter=";"))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('b,"two', r"a field in quotes does not end, and rows that span lines are not read"),
        ("b,2,3", r"it has 3 fields, and there are 2 columns"),
        ('b,"2"x', r"',' expected after '\"'"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(tmp_path: Path, bad: str, why: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'k,n\na,1\n\n{bad}\nlines",2\nc,3\n')
    with pytest.raises(SourceError, match=rf"line 4 of '.*a\.csv' is not a row of CSV: {why}; the line is"):
        read(queue_of(*plan_splits([str(path)])), csv_parser())
    path.write_text(f"k,n\na,1\n\n{bad}\nc,3\n")
    [split] = plan_splits([str(path)])
    assert read(queue_of(split), csv_parser(as_=tuple, on_error="skip")) == [("a", "1"), ("c", "3")]


def test_a_first_line_that_names_no_columns_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for first, why in (("a,,b", "must name each column once"), ("a,a", "each column once"), ('a,"b', "does not name")):
        path.write_text(f"{first}\n1,2\n")
        with pytest.raises(SourceError, match=rf"the first line of '.*a\.csv' {why}|{why}"):
            read(queue_of(*plan_splits([str(path)])), csv_parser())
    with pytest.raises(SourceError, match=r"was read by another worker, or by Spark: name them by header=\[…\]"):
        csv_parser()(("", ["1,2"], LinePlace()))


def test_what_cannot_be_meant_is_refused_where_it_is_written() -> None:
    for options, why in [
        ({"header": "a,b"}, "header must be True, False or the names"), ({"as_": list}, "as_ must be dict, tuple or"),
        ({"header": False}, "without a header a row is a tuple"), ({"delimiter": ";;"}, "delimiter"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip'"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=why):
            csv_parser(**options)  # type: ignore[arg-type]
    for first, second in ((Flow.lines, Flow.json_lines), (Flow.csv, Flow.lines), (Flow.csv, Flow.json_lines)):

        def build(scope: Any, first: Any = first, second: Any = second) -> None:
            flow = Flow(None, scope, None, [], scope.empty)  # type: ignore[arg-type]
            first(flow)
            with pytest.raises(BuildError, match="read it once"):
                second(flow)

        example(build)


@pytest.mark.parametrize("seed", range(3))
def test_partitions_are_parsed_while_workers_come_and_go(seed: int) -> None:
    partitions = [["k,n", *(f"{name},{number}" for number in range(40))] for name in "abc"]

    def total(key: str, number: int, state: int | None) -> tuple[int, list[tuple[str, int]]]:
        return (state or 0) + number, [(key, (state or 0) + number)]

    def dataflow(flow: Flow) -> Any:
        return flow.csv().map(lambda row: (row["k"], int(row["n"]))).stateful_state_machine(total)

    cluster = SimulatedCluster(seed=seed, workers=2)
    cluster.at(record=30, do=Join())
    cluster.at(record=60, do=Leave(seed % 2))
    assert dict(cluster.run(dataflow, lines=partitions)) == dict.fromkeys("abc", 780)

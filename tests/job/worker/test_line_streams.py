"""Lines that have no file are parsed as a file is, also where they go to another process."""

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control.messages import ParserPlace, PushedEnded
from megaflow.errors import SourceError
from megaflow.job.csv_format import Csv
from megaflow.job.json_format import JsonLines
from megaflow.job.launcher.file_lines import TextSplitter
from megaflow.job.record_format import RecordFormat
from megaflow.job.text_lines import Text
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.staging import Staging


def queue_of(format: RecordFormat, places: tuple[ParserPlace, ...] | None, piped: bool = True) -> LineQueue:
    """Return the queue of a worker that reads the launcher's lines, from the first one on if there are no places."""
    queue = LineQueue(Staging(0))
    queue.streams.formats = {"": format}
    queue.streams.piped = ("",) if piped else ()
    queue.expect_pushed(places is None, places or ())
    return queue


def read(queue: LineQueue) -> list[Any]:
    records = []
    while (taken := queue.take(0.0)) is not None:
        records += taken[0]
    return records


def places_of(queue: LineQueue) -> tuple[ParserPlace, ...]:
    """Return where the next worker goes on."""
    [report] = queue.take_reports()
    assert isinstance(report, PushedEnded) and report.elsewhere
    return report.places


def whole(text: str) -> tuple[list[list[str]], int]:
    """Return the rows of the whole text by Python's csv, without blank ones, and how many faults it has."""
    lines = iter([*io.StringIO(text, newline="")])
    rows, faults = list[list[str]](), 0
    while True:
        try:
            for row in csv.reader(lines, strict=True):
                rows.append(row)
            return [row for row in rows if row], faults
        except csv.Error:
            faults += 1


def width_of(rows: list[list[str]], header: bool) -> int:
    widths = [len(row) for row in rows] or [0]
    if header:
        return widths[0]
    return next((width for index, width in enumerate(widths) if width in widths[:index]), widths[0])


pieces = st.sampled_from(['"', '"', ",", "\n", "\n", "\r\n", "\r", "a", "é", '""', "#"])


@settings(deadline=None, max_examples=300)
@given(
    text=st.lists(pieces, max_size=60).map("".join), sizes=st.lists(st.integers(1, 9)),
    moves=st.lists(st.booleans()), header=st.booleans(),
)  # fmt: skip
@example(text='"a\r\nb"\r\n"c\rd"\n', sizes=[3, 3], moves=[True, True], header=False)
@example(text='"a\nb",c\n1,2\n', sizes=[], moves=[True], header=True)
def test_standard_input_is_parsed_as_a_file_by_any_workers(
    text: str, sizes: list[int], moves: list[bool], header: bool
) -> None:
    found = list[str]()
    format = Csv(lambda text: found.append(text()), header, tuple)
    splitter, data, at = TextSplitter(Text("standard input", "strict")), text.encode(), 0
    records, queue = list[Any](), queue_of(format, None)
    rows, faults = whole(text)
    try:
        for size in [*sizes, len(data)]:
            queue.push(splitter.feed(data[at : at + size]))
            at += size
            records += read(queue)
            if moves and moves.pop():
                queue.end_pushed(elsewhere=True)
                records += read(queue)
                queue = queue_of(format, places_of(queue))
        queue.push(splitter.end())
        records += read(queue)
        queue.end_pushed()
        records += read(queue)
    except SourceError as error:
        assert header and faults and "does not name columns" in str(error)
        return
    assert queue.take_reports() == [PushedEnded()]
    assert queue.lines_taken <= len([*io.StringIO(text, newline="")])
    wanted = [tuple(row) for row in rows[header:] if len(row) == width_of(rows, header)]
    assert records == wanted and len(found) == faults + len(rows[header:]) - len(wanted)


def test_lines_that_are_not_csv_lose_their_returns() -> None:
    lines = TextSplitter(Text("standard input")).feed(b"1\r\n2\r3\n")
    for format, wanted in ((RecordFormat(), ["1", "2", "3"]), (JsonLines(), [1, 2, 3])):
        queue = queue_of(format, None)
        queue.push(lines)
        assert read(queue) == wanted
    queue = queue_of(RecordFormat(), None, piped=False)
    queue.push(["an iterable may have\r"])
    assert read(queue) == ["an iterable may have\r"]


def test_the_next_worker_knows_the_columns_and_the_lines_before() -> None:
    first = queue_of(Csv(), None, piped=False)
    first.end_pushed(elsewhere=True)
    assert read(first) == []
    second = queue_of(Csv(), places_of(first), piped=False)
    second.push(["a,b", "1,2"])
    second.end_pushed(elsewhere=True)
    assert read(second) == [{"a": "1", "b": "2"}]
    third = queue_of(Csv(), places_of(second), piped=False)
    third.end_pushed(elsewhere=True)
    assert read(third) == []
    fourth = queue_of(Csv(), places_of(third), piped=False)
    fourth.push(["3,4", '"5'])
    with pytest.raises(SourceError, match="line 4 of the launcher's input is not a row of CSV"):
        read(fourth)


def test_a_row_that_is_open_at_the_end_is_an_error() -> None:
    queue = queue_of(Csv(), None)
    queue.push(["a,b", '1,"2'])
    assert read(queue) == []
    queue.end_pushed()
    with pytest.raises(SourceError, match=r"line 2 of the launcher's input .* does not end"):
        read(queue)

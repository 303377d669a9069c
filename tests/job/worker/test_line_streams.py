"""Lines without a file are parsed like those of a file, even if they move to another process."""

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control.messages import PushedEnded
from megaflow.errors import SourceError
from megaflow.job.formats.csv_format import Csv
from megaflow.job.formats.json_format import JsonLines
from megaflow.job.formats.json_values import JsonValues
from megaflow.job.formats.line_records import LineRecords
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.formats.text_lines import Text
from megaflow.job.launcher.inputs.file_lines import TextSplitter
from tests.examples import many
from tests.job.reading import places_of, pushed_to, read, read_pushed


def whole(text: str) -> tuple[list[list[str]], int]:
    """Return the rows that Python's csv finds in the whole text, without blank ones, and the number of faults."""
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


@settings(deadline=None, max_examples=many(300))
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
    rows, faults = whole(text)
    try:
        records, queue = read_pushed(text.encode(), format, sizes, moves)
    except SourceError as error:
        assert header and faults and "does not name columns" in str(error)
        return
    assert queue.lines_taken <= len([*io.StringIO(text, newline="")])
    wanted = [tuple(row) for row in rows[header:] if len(row) == width_of(rows, header)]
    assert records == wanted and len(found) == faults + len(rows[header:]) - len(wanted)


def test_lines_that_are_not_csv_lose_their_returns() -> None:
    lines = TextSplitter(Text("standard input")).feed(b"1\r\n2\r3\n")
    for format, wanted in ((RecordFormat(), ["1", "2", "3"]), (JsonLines(), [1, 2, 3])):
        queue = pushed_to(format)
        queue.push(lines)
        assert read(queue) == wanted
    queue = pushed_to(RecordFormat(), piped=False)
    queue.push(["an iterable may have\r"])
    assert read(queue) == ["an iterable may have\r"]


def test_the_next_worker_knows_the_columns_and_the_lines_before() -> None:
    first = pushed_to(Csv(), piped=False)
    first.end_pushed(elsewhere=True)
    assert read(first) == []
    second = pushed_to(Csv(), places_of(first), piped=False)
    second.push(["a,b", "1,2"])
    second.end_pushed(elsewhere=True)
    assert read(second) == [{"a": "1", "b": "2"}]
    third = pushed_to(Csv(), places_of(second), piped=False)
    third.end_pushed(elsewhere=True)
    assert read(third) == []
    fourth = pushed_to(Csv(), places_of(third), piped=False)
    fourth.push(["3,4", '"5'])
    with pytest.raises(SourceError, match="line 4 of the launcher's input is not a row of CSV"):
        read(fourth)


def test_a_row_that_is_open_at_the_end_is_an_error() -> None:
    queue = pushed_to(Csv())
    queue.push(["a,b", '1,"2'])
    assert read(queue) == []
    queue.end_pushed()
    with pytest.raises(SourceError, match=r"line 2 of the launcher's input .* does not end"):
        read(queue)


@pytest.mark.parametrize(
    ("format", "lines", "wanted"),
    [
        (Csv(as_=tuple), ["a,b", "1,2", '3,"4'], [("1", "2")]),
        (Csv(as_=tuple), ['a,"b'], []),
        (Csv(header=False, as_=tuple), ["1,2"], [("1", "2")]),
        (JsonLines(), ['{"a": 1}', "2"], [{"a": 1}, 2]),
        (JsonValues(), ["[1, 2", ', {"a":'], [1, 2]),
        (JsonValues(), ['{"a":', "1}", "2"], [{"a": 1}, 2]),
        (LineRecords("^#"), ["#1", " x", "#2", " y"], ["#1\n x"]),
        (RecordFormat(), ["1", "2"], ["1", "2"]),
    ],
)
def test_a_record_that_a_stop_has_cut_off_is_left_out(
    format: RecordFormat, lines: list[str], wanted: list[Any]
) -> None:
    queue = pushed_to(format)
    queue.push(lines)
    queue.end_pushed(cut=("",))
    assert read(queue) == wanted and queue.take_reports() == [PushedEnded()]

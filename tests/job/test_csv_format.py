"""However a CSV file is read, its records equal those of Python's `csv` over the whole file."""

import csv
import io
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megaflow.control.wording import CUT, FILLED, MARKS, SKIPPED_LINES
from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats import csv_parser
from megaflow.job.formats.csv_format import Csv
from megaflow.job.formats.csv_parser import RowParser, kept_lines
from megaflow.job.launcher.run.run_summary import RunSummary, ended_text
from megaflow.job.worker.process.flow import Flow
from megaflow.job.worker.process.named_inputs import NamedInputs, SkippedLines
from megaflow.job.worker.writing.csv_rows import CsvRows
from megaflow.testing import Join, Leave, SimulatedCluster
from megaflow.timely import example as dataflow_example
from tests.examples import many
from tests.job.by_hand import flow_by_hand
from tests.job.reading import COMPRESS, Counted, queue_of, read, read_growing, read_in_turns, read_pushed
from tests.words import says

CASES = Path(__file__).parent.parent / "cases"


def rows_of(path: Path, **options: Any) -> list[Any]:
    queue = queue_of(*plan_splits([str(path)]), format=Csv(**options))
    records = read(queue)
    with path.open(newline="", encoding="utf-8-sig") if path.suffix == ".csv" else io.StringIO() as file:
        assert path.suffix != ".csv" or queue.lines_taken == sum(1 for _ in file), "lines are counted, not rows"
    return records


def pushed(lines: list[str], **options: Any) -> list[Any]:
    """Return the records of lines that the launcher reads."""
    queue = queue_of(format=Csv(**options))
    queue.expect_pushed(True)
    for line in lines:
        queue.push([line])
    queue.end_pushed()
    records = read(queue)
    assert queue.lines_taken == len(lines)
    return records


def piped(path: Path, **options: Any) -> list[Any]:
    """Return the records of standard input with the bytes of a file."""
    data = path.read_bytes()
    return read_pushed(data, Csv(**options), [1 << 16] * (len(data) >> 16), [])[0]


def recovered(text: str, **dialect: Any) -> tuple[list[list[str]], int]:
    """Return the rows that Python's csv finds in the whole text, and the number of faults: the oracle.

    After a fault, another reader continues at the line after the failure. Byte order marks before a row are left out.
    """
    lines = [*io.StringIO(text, newline="")]
    rows, faults = list[list[str]](), 0
    while lines:
        lines[0] = lines[0].lstrip("\ufeff")
        reader = csv.reader(lines, strict=True, **dialect)
        try:
            rows.append(next(reader))
        except csv.Error:
            faults += 1
        del lines[: reader.line_num]
    return [row for row in rows if row], faults


def width_of(rows: list[list[str]]) -> int:
    """Return the number of fields on which two successive rows first agree, or that of the first row."""
    widths = [len(row) for row in rows]
    agreed = (width for index, width in enumerate(widths) if width in widths[:index])
    return next(agreed, widths[0] if widths else 0)


# The cases


def test_rows_that_span_lines_are_rows() -> None:
    wanted = [{"k": "1", "v": "a\nb,c\nd"}, {"k": "2", "v": "z"}]
    counted = Counted()
    assert rows_of(CASES / "w2.csv") == rows_of(CASES / "w2.csv", skip=counted) == wanted
    three = [("1", "2", "3"), ("two\nlines", "5", "6"), ("7", "8", "9")]
    assert rows_of(CASES / "newlines.csv", as_=tuple) == rows_of(CASES / "newlines.csv", as_=tuple, skip=counted)
    assert rows_of(CASES / "newlines.csv", as_=tuple) == three and not counted.texts


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_lines_of_files_that_are_handed_over_are_counted_once(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\n"a\nb",c\n' + '"1\n2",3\n\n' * 5_000)
    first = queue_of(*plan_splits([str(path)]), format=Csv())
    records = read(first, batches)
    second = queue_of(*first.give_back(), format=Csv())
    records += read(second)
    assert len(records) == 5_000 and first.lines_taken + second.lines_taken == 3 + 15_000


def test_blank_lines_give_no_row_without_a_header_either() -> None:
    wanted = [("a", "b"), ("c", "d")]
    assert rows_of(CASES / "blank_noheader.csv", header=False, as_=tuple) == wanted
    assert pushed(["a,b", "", "c,d"], header=False, as_=tuple) == wanted


def test_blanks_and_bad_rows_are_the_same_however_read() -> None:
    path, options = CASES / "blanks_and_bad.csv", {"header": False, "as_": tuple}
    rows, _ = recovered(path.read_text())
    wanted = [tuple(row) for row in rows if len(row) == 2]
    assert len(wanted) == 876
    counted = Counted()
    assert rows_of(path, skip=counted, **options) == wanted and len(counted.texts) == 24
    counted = Counted()
    assert pushed(path.read_text().splitlines(), skip=counted, **options) == wanted and len(counted.texts) == 24
    for batches in (1, 2, 5):
        counted, records, splits = Counted(), list[Any](), tuple(plan_splits([str(path)], 1))
        while splits:
            queue = queue_of(*splits, format=Csv(skip=counted, multiline=False, **options))
            records += read(queue, batches)
            splits = queue.give_back()
        assert sorted(records) == sorted(wanted) and len(counted.texts) == 24


@pytest.mark.parametrize("name", ["repeated_header.csv", "repeated_header_blank.csv"])
def test_a_repeated_header_is_a_row_unless_it_is_skipped(name: str) -> None:
    rows = [("x", "1"), ("name", "qty"), ("y", "2")]
    assert rows_of(CASES / name, as_=tuple) == rows
    assert rows_of(CASES / name, as_=tuple, skip_repeated_header=True) == [rows[0], rows[2]]
    assert pushed((CASES / name).read_text().splitlines(), as_=tuple) == rows


def test_an_unnamed_column_gets_a_name_by_its_place() -> None:
    wanted = [{"column_1": "0", "a": "x", "b": "1"}, {"column_1": "1", "a": "y", "b": "2"}]
    assert rows_of(CASES / "index_col.csv") == wanted


def test_without_quoting_quotes_are_text() -> None:
    wanted = [*csv.reader((CASES / "stray_quotes.tsv").open(newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)]
    assert rows_of(CASES / "stray_quotes.tsv", delimiter="\t", quoting=False, as_=tuple) == [*map(tuple, wanted[1:])]


def test_a_line_that_says_the_separator_is_recognised() -> None:
    assert rows_of(CASES / "sep.csv") == [{"a": "1", "b": "2"}]
    assert pushed((CASES / "sep.csv").read_text().splitlines()) == [{"a": "1", "b": "2"}]


def test_comments_are_left_out() -> None:
    assert rows_of(CASES / "comment.csv", comment="#") == [{"t": "1", "v": "2"}]
    assert pushed((CASES / "comment.csv").read_text().splitlines(), comment="#") == [{"t": "1", "v": "2"}]
    assert rows_of(CASES / "comment.csv", skip_lines=2) == [{"t": "1", "v": "2"}]


def test_a_byte_order_mark_and_carriage_returns_are_as_in_csv() -> None:
    with (CASES / "bom_crlf_blank.csv").open(encoding="utf-8-sig", newline="") as file:
        wanted = [*csv.DictReader(file)]
    assert rows_of(CASES / "bom_crlf_blank.csv") == wanted


@pytest.mark.parametrize(("name", "last"), [("bom_middle.csv", "b"), ("bom_middle_quoted.csv", None)])
@pytest.mark.parametrize("multiline", [True, False])
def test_a_mark_between_joined_files_is_left_out(name: str, last: str | None, multiline: bool) -> None:
    counted = Counted()
    options: dict[str, Any] = {"skip_repeated_header": True, "multiline": multiline, "count": counted.count}
    rows = rows_of(CASES / name, **options)
    assert [row["id"] for row in rows] == ["1", "2"] and counted.kinds[MARKS] >= 1
    assert rows[1]["v"] == last if last else any("\ufeff" in value for row in rows for value in row.values())


def test_marks_are_counted_once_though_workers_hand_over(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("k,n\n" + '\ufeffa,1\n"b\n\ufeff",2\n' * 3_000, encoding="utf-8")
    for block_bytes, steps in ((64, [1, 2, 3]), (6144, [1, 200, 1_000])):
        counted = Counted()
        records, _ = read_in_turns(path, Csv(as_=tuple, count=counted.count), block_bytes, steps)
        assert records == [("a", "1"), ("b\n\ufeff", "2")] * 3_000 and counted.kinds == {MARKS: 3_000}


def test_a_quote_that_swallows_lines_counts_them() -> None:
    counted = Counted()
    rows = rows_of(CASES / "swallowed.csv", skip=counted, count=counted.count)
    assert len(rows) == 20 and len(counted.texts) == 1 and counted.kinds == {SKIPPED_LINES: 39}
    skipped, read = Counter({"": 1}), {SKIPPED_LINES: Counter({"": 39})}
    assert says(ended_text(RunSummary(60, 20, 0.1, skipped=skipped, read_counts=read)), "1 fault", "39 further lines",
                "multiline=False")  # fmt: skip


def test_ragged_rows_are_filled_or_cut_and_counted() -> None:
    path = CASES / "ragged.csv"
    with pytest.raises(SourceError, match=r"line 2 of .* 2 fields for 3 columns; .* ragged='fill' gives None"):
        rows_of(path)
    for ragged, wanted in (("fill", [("1", "2", None), ("1", "2", "3")]), ("cut", [("1", "2", "3"), ("1", "2", "3")])):
        counted = Counted()
        options: dict[str, Any] = {"skip": counted, "count": counted.count, "ragged": ragged, "as_": tuple}
        assert rows_of(path, **options) == wanted
        assert counted.kinds == {FILLED if ragged == "fill" else CUT: 1} and len(counted.texts) == 1
    with pytest.raises(UsageError, match="ragged must be"):
        Csv(ragged="pad")


def test_a_missing_field_is_none_only_where_its_type_allows_it(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.csv", Counted()
    path.write_text("a,b,c\n1,x\n2\n")
    rows = rows_of(path, ragged="fill", as_=tuple, types={"a": int, "c": int | None})
    assert rows == [(1, "x", None), (2, None, None)]
    assert rows_of(path, ragged="fill", types={"c": int}, skip=counted) == [] and "'c' is empty" in counted.texts[0]


def test_filled_rows_of_a_growing_file_are_counted_once(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.csv", Counted()
    format = Csv(ragged="fill", as_=tuple, skip=counted, count=counted.count)
    data = b"a,b\n" + b"1\n2,3\n\xef\xbb\xbf4\n5,6,7\n" * 50
    records, reader = read_growing(FollowedFiles(str(path), format=format), path, data, [9, 50, 3], [True, False], 2)
    reader.close()
    assert records == [("1", None), ("2", "3"), ("4", None)] * 50
    assert counted.kinds == {FILLED: 100, MARKS: 50} and len(counted.texts) == 50


def test_blanks_after_a_delimiter_can_be_left_out() -> None:
    assert rows_of(CASES / "space_quote.csv", skipinitialspace=True) == [{"a": "1", "b": "x, y"}]


@pytest.mark.parametrize("columns", [300, 2_000, 50_000])
def test_many_equal_names_cost_no_more_than_others(tmp_path: Path, columns: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(["x"] * columns) + "\n" + ",".join("1" * columns) + "\n")
    start = process_time()
    [row] = rows_of(path)
    same = process_time() - start
    assert len(row) == columns and {*row.values()} == {"1"} and f"x_{columns}" in row
    path.write_text(",".join(f"x{number}" for number in range(columns)) + "\n" + ",".join("1" * columns) + "\n")
    start = process_time()
    rows_of(path)
    assert same < 20 * (process_time() - start) + 0.1


# Any text, read in any way

pieces = st.sampled_from(
    ['"', '"', ",", "\n", "\n", "\r\n", "\r", "a", "é", '""', "\\", ";", "#", " ", "\n#,\"\n", "\ufeff"]
)
texts = st.lists(pieces, max_size=60).map("".join)
OPTIONS: list[dict[str, Any]] = [
    {}, {"escapechar": "\\"}, {"quoting": False}, {"delimiter": ";", "quotechar": "a"}, {"skipinitialspace": True}
]  # fmt: skip


def dialect_of(options: dict[str, Any]) -> dict[str, Any]:
    dialect = {key: value for key, value in options.items() if key != "quoting"}
    return dialect if options.get("quoting", True) else {**dialect, "quoting": csv.QUOTE_NONE}


@settings(deadline=None, max_examples=many(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts, options=st.sampled_from(OPTIONS), block_bytes=st.integers(1, 40), taken=st.lists(st.integers(1, 4)),
    suffix=st.sampled_from(["", ".gz"]),
)
@example(text='a,"b\r\n\nc",d\n\n"e\n', options={}, block_bytes=1, taken=[1, 1], suffix="")
@example(text='"a"b\nc,"\nd\n', options={}, block_bytes=3, taken=[1], suffix="")
@example(text="\ufeff", options={}, block_bytes=1, taken=[], suffix="")
@example(text='a\n\ufeff"b"\n"\n\ufeffc"\n\ufeff\n\ufeffd,e\n', options={}, block_bytes=99, taken=[2], suffix="")
def test_any_text_gives_the_rows_of_csv_however_read(
    tmp_path: Path, text: str, options: dict[str, Any], block_bytes: int, taken: list[int], suffix: str
) -> None:
    rows, faults = recovered(text, **dialect_of(options))
    width = width_of(rows)
    wanted = [tuple(row) for row in rows if len(row) == width]
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(COMPRESS[suffix](text.encode()))
    counted = Counted()
    format = Csv(skip=counted, header=False, as_=tuple, **options)
    records, _ = read_in_turns(path, format, block_bytes, taken)
    assert records == wanted
    assert len(counted.texts) == faults + len(rows) - len(wanted)


@settings(deadline=None, max_examples=many(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts)
def test_without_faults_on_error_makes_no_difference(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    counted = Counted()
    wanted = rows_of(path, skip=counted, header=False, as_=tuple)
    if counted.texts:
        with pytest.raises(SourceError):
            rows_of(path, header=False, as_=tuple)
    else:
        assert rows_of(path, header=False, as_=tuple) == wanted


@settings(deadline=None, max_examples=many(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries({"a": st.text(st.characters(codec="utf-8")), "b": st.text('",\r\n\\#é;', max_size=9)}),
        max_size=9,
    )
)
@example([{"a": "\ufeff", "b": "\ufeff\ufeffx"}, {"a": "\ufeffa b", "b": "\ufeff"}])
@example([{"a": "x" * 3_000_000, "b": "y"}])
def test_what_csv_output_writes_is_read_back(tmp_path: Path, records: list[dict[str, str]]) -> None:
    path = tmp_path / "out.csv"
    lines = CsvRows(["a", "b"]).render(1, records)
    path.write_text("a,b\n" + "".join(lines), encoding="utf-8", newline="")
    assert rows_of(path) == records
    single = [{"a": record["b"]} for record in records]
    path.write_text("a\n" + "".join(CsvRows(["a"]).render(1, single)), encoding="utf-8", newline="")
    assert rows_of(path) == single


def test_a_large_field_of_several_lines_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    records = [{"a": "x\n" * 600_000, "b": "y"}, {"a": '"\r\n' * 400_000, "b": '"\n' * 400_000}]
    path.write_text("a,b\n" + "".join(CsvRows(["a", "b"]).render(1, records)), encoding="utf-8", newline="")
    for read_all in (rows_of, piped):
        is_right = read_all(path) == records  # pytest would compare these texts for minutes
        assert is_right


class Order(NamedTuple):
    amount: str
    customer: str


@pytest.mark.parametrize("suffix", COMPRESS)
def test_rows_are_those_of_csv_however_the_file_is_cut(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"orders.csv{suffix}"
    rows = [(f'a "{number}", é', str(number)) for number in range(2000)]
    text = 'customer,amount\n\n' + "".join('"' + a.replace('"', '""') + f'",{b}\r\n' for a, b in rows)
    path.write_bytes(COMPRESS[suffix](("\ufeff" + text).encode()))
    kinds: dict[Any, Callable[[str, str], Any]] = {
        dict: lambda a, b: {"customer": a, "amount": b}, tuple: lambda a, b: (a, b), Order: lambda a, b: Order(b, a)
    }  # fmt: skip
    for kind, make in kinds.items():
        splits = plan_splits([str(path)], 3)
        assert len(splits) > 3 or suffix
        wanted = [make(*row) for row in rows]
        options = {"as_": kind, "multiline": False}
        assert [each for split in splits for each in read(queue_of(split, format=Csv(**options)))] == wanted
        assert read(queue_of(*splits, format=Csv(**options))) == wanted
        assert rows_of(path, as_=kind) == wanted
    assert pushed(text.splitlines(), as_=tuple) == rows


def test_each_file_names_its_own_columns_or_the_program_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k;n\na;1\n")
    (tmp_path / "b.csv").write_text("n;k\n2;b\n")
    splits = plan_splits([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert read(queue_of(*splits, format=Csv(delimiter=";"))) == [{"k": "a", "n": "1"}, {"n": "2", "k": "b"}]
    named = {"header": ["x", "y"], "delimiter": ";"}
    assert rows_of(tmp_path / "a.csv", **named) == [{"x": "k", "y": "n"}, {"x": "a", "y": "1"}]
    assert rows_of(tmp_path / "a.csv", skip_header=True, **named) == [{"x": "a", "y": "1"}]
    assert rows_of(tmp_path / "a.csv", header=False, as_=tuple) == [("k;n",), ("a;1",)]
    with pytest.raises(SourceError, match=r"a\.csv' has the columns k, n, but Order has the fields amount, customer"):
        rows_of(tmp_path / "a.csv", as_=Order, delimiter=";")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('b,"two', r"a quoted field does not end, .*; the row takes 2 lines"),
        ("b,2,3", r"it has 3 fields for 2 columns"),
        ('b,"2"x', r"',' expected after '\"'"),
    ],
)
def test_a_faulty_row_is_named_by_its_line(tmp_path: Path, bad: str, why: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"k,n\na,1\n\n{bad}\nc,3\n")
    with pytest.raises(SourceError, match=rf"line 4 of '.*a\.csv' is not a row of CSV: {why}.*; the line is"):
        rows_of(path)
    counted = Counted()
    rows = [("a", "1"), ("c", "3")]
    assert rows_of(path, as_=tuple, skip=counted) == (rows[:1] if "two" in bad else rows)
    assert rows_of(path, as_=tuple, skip=counted, multiline=False) == rows
    assert len(counted.texts) == 2 and "line 4" in counted.texts[0]


def test_a_quote_that_stays_open_swallows_a_million_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('k,n\na,1\nb,"2\n' + "".join(f"{number:06},x\n" for number in range(200_000)))
    counted = Counted()
    rows = rows_of(path, as_=tuple, skip=counted)
    assert len(counted.texts) == 1 and "closing quote missing?" in counted.texts[0] and "line 3 of" in counted.texts[0]
    assert rows[0] == ("a", "1") and rows[-1] == ("199999", "x")
    lost = 200_000 + 1 - len(rows)
    assert abs(lost * 9 - csv_parser.FIELD_CHARACTERS) < 20
    path.write_text('k,n\na,"' + "x" * 900_000 + '"\n')
    assert rows_of(path) == [{"k": "a", "n": "x" * 900_000}]


def test_a_long_field_in_one_line_is_no_fault(tmp_path: Path) -> None:
    long = "x," * 1_500_000
    path = tmp_path / "a.csv"
    path.write_text(f'k,n\na,"{long}"\nb,"1\n2"\n', encoding="utf-8")
    wanted = [("a", long), ("b", "1\n2")]
    assert rows_of(path, as_=tuple) == rows_of(path, as_=tuple, comment="#") == wanted
    assert pushed(["k,n", f'a,"{long}"'], as_=tuple) == wanted[:1]


def parsed(parser: RowParser, text: str) -> tuple[list[list[str]], list[int], list[str]]:
    """Return the rows of a whole text, the lines with which its faults end, and their reasons."""
    rows, ends, reasons, lines, done = list[list[str]](), list[int](), list[str](), kept_lines(text), 0
    while done < len(lines):
        found = parser.parse("".join(lines[done:]), True)
        rows += found.rows
        ends += (done + fault.end for fault in found.faults)
        reasons += (fault.reason for fault in found.faults)
        done += found.lines
    return rows, ends, reasons


@pytest.mark.parametrize("before", ["", 'k,"\n\n",'])
@pytest.mark.parametrize("lines", [10_480, 10_484, 10_485, 10_486, 10_487, 12_000, 25_000])
def test_a_long_field_without_a_valid_end_is_a_fault(lines: int, before: str) -> None:
    parser, skipped = RowParser(), before.count("\n")
    for end in ('"', '"y', ""):
        text = f'a\n{before}"' + f"{'x' * 99}\n" * lines + f"x{end}\nb,c\n"
        rows, ends, reasons = parsed(parser, text)
        long = ["x" * 99 + "\n"] * lines
        if end == '"':
            is_right = rows == [["a"], [*(["k", "\n\n"] if before else []), "".join(long) + "x"], ["b", "c"]]
            assert is_right and not ends
            continue
        if lines < 10_486:
            assert ends == [skipped + lines + (2 if end else 3)] and rows == ([["a"], ["b", "c"]] if end else [["a"]])
            continue
        assert ends[0] == skipped + 10_487 and rows[-1] == ["b", "c"]
        assert says(reasons[0], "a field of several lines has more than 1,048,576 characters", "is a closing quote")
        assert ("from line 3 of the row on" in reasons[0]) is bool(before)
        for cut in (1, 5, 10_486, 10_487, 10_488, 11_000, lines + 1):
            first = parser.parse("".join(kept_lines(text)[: min(cut, lines + 1)]), False)
            assert first.rows == rows[:1] and not first.faults


long_texts = st.lists(st.sampled_from(['"', ",", "\n", "\n", "a\n", "é,b\n", '""', '"x",y\n', "#\n"]), max_size=150)


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=long_texts.map("".join), block_bytes=st.integers(1, 64), taken=st.lists(st.integers(1, 9)),
    suffix=st.sampled_from(["", ".gz"]), comment=st.sampled_from([None, "#"]),
)  # fmt: skip
@example(text='#\n#\na,"' + "b\n" * 20 + 'b",c\nd,e\n', block_bytes=1, taken=[], suffix="", comment="#")
@example(text='#\n""', block_bytes=1, taken=[], suffix="", comment="#")
@example(text='a,"\n' + "a,b\n" * 40, block_bytes=1, taken=[], suffix="", comment=None)
@example(text='a,"' + "x\n" * 90 + 'y"\n', block_bytes=3, taken=[1], suffix="", comment=None)
def test_a_row_that_is_too_long_is_the_same_however_the_file_is_read(
    tmp_path: Path, text: str, block_bytes: int, taken: list[int], suffix: str, comment: str | None
) -> None:
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(COMPRESS[suffix](text.encode()))

    def outcome(block_bytes: int, taken: list[int]) -> tuple[list[Any], list[str], str]:
        counted, records = Counted(), list[Any]()
        format = Csv(skip=counted, header=["a", "b"], as_=tuple, comment=comment, bytes_max=64)
        try:
            records, _ = read_in_turns(path, format, block_bytes, taken)
        except SourceError as error:
            assert says(str(error), "has a row of more than", "--line-size-max") or "The head of" in str(error)
            return [], [], str(error)
        return records, counted.texts, ""

    assert outcome(block_bytes, taken) == outcome(64, [])


@pytest.mark.parametrize("next_quote", ["", 'z,"y"\n'])
def test_a_quote_without_an_end_swallows_part_of_the_longest_row(tmp_path: Path, next_quote: str) -> None:
    numbers = [f"{number:06},x\n" for number in range(60_000)]
    path = tmp_path / "a.csv"
    path.write_text('k,n\na,1\nb,"2\n' + "".join(numbers) + next_quote + "".join(numbers))
    for read_all in (rows_of, piped):
        counted = Counted()
        rows = read_all(path, as_=tuple, skip=counted, bytes_max=400_000)
        [said] = counted.texts
        assert says(said, "line 3", "100,000 characters", "closing quote missing? If not, raise --line-size-max")
        assert rows[0] == ("a", "1") and rows[-1] == ("059999", "x")
        lost = 120_000 + 1 + bool(next_quote) - len(rows)
        assert abs(lost * 9 - 100_000) < 20
        with pytest.raises(SourceError, match="is a closing quote missing"):
            read_all(path, as_=tuple, bytes_max=400_000)


@pytest.mark.parametrize(("kind", "end"), [(str, ",5"), (int, "")])
def test_a_faulty_row_with_a_long_field_takes_part_of_it(tmp_path: Path, kind: type, end: str) -> None:
    numbers = "".join(f"{number:06},1\n" for number in range(40_000))
    path = tmp_path / "a.csv"
    path.write_text(f'k,n\n# about\nb,"2\n{numbers}c,"{end}\n{numbers}d,4\n')
    for read_all in (rows_of, piped):
        counted = Counted()
        rows = read_all(path, skip=counted, as_=tuple, comment="#", bytes_max=600_000, types={"n": kind})
        assert len(rows) == 80_001 - 2 * 16_667 and rows[0] == ("016667", kind(1)) and rows[-1] == ("d", kind(4))
        said, other = counted.texts
        assert says(said, "line 3", "150,000 characters", "it has 3 fields" if end else "not of type int", "missing?")
        assert says(other, f"line {40_004}", "150,000 characters", "no valid end", "closing quote missing?")


LINES = [pytest.param("x\n", id="plain"), pytest.param('x ""y""\n', id="quotes", marks=pytest.mark.slow)]


@pytest.mark.parametrize("line", LINES)
def test_a_large_field_of_several_lines_costs_time_in_its_size(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'k,n\na,"{line * (8_000_000 // len(line))}"\nb,1\n')
    Csv()  # sets the limit of `csv`
    start = process_time()
    with path.open(newline="") as file:
        wanted = [tuple(row) for row in csv.reader(file)][1:]
    alone = process_time() - start
    for read_all in (rows_of, piped):
        start = process_time()
        is_right = read_all(path, as_=tuple) == wanted
        assert is_right and process_time() - start < 100 * alone + 1  # 4 to 36 times here


def test_a_header_may_span_lines_and_follow_blanks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('about\n\n# "\n"a\nb",c,c,\n1,2,3,4\n')
    wanted = {"a\nb": "1", "c": "2", "c_2": "3", "column_4": "4"}
    assert rows_of(path, comment="#", skip_lines=1) == [wanted]
    path.write_text('a,"b')
    with pytest.raises(SourceError, match=r"The first row of '.*a\.csv' does not name columns: a quoted field"):
        rows_of(path)
    for empty in ("a,b", "a,b\n", "\n", "# x\n"):
        path.write_text(empty)
        assert rows_of(path, comment="#") == []


def test_lines_without_a_beginning_need_names() -> None:
    queue = queue_of(format=Csv())
    queue.expect_pushed()
    queue.push(["1,2"])
    with pytest.raises(SourceError, match=r"was read by another worker or by Spark\. Name the columns by header=\[…\]"):
        read(queue)
    queue = queue_of(format=Csv(header=["a", "b"]))
    queue.expect_pushed()
    queue.push(["1,2"])
    assert read(queue) == [{"a": "1", "b": "2"}]


def test_what_cannot_be_meant_is_refused_where_it_is_written() -> None:
    for options, why in [
        ({"header": "a,b"}, "header must be True, False or the names"), ({"as_": list}, "as_ must be dict, tuple or"),
        ({"header": False}, "Without a header a row is a tuple"), ({"delimiter": ";;"}, "delimiter"),
        ({"header": ["a", "a"]}, "name each column once"), ({"skip_lines": -1}, "skip_lines must be"),
        ({"skip_header": True}, "skip_header=True replaces"), ({"comment": ""}, "comment must be"),
        ({"header": ["a"], "skip_repeated_header": True}, "needs a first row"), ({"escapechar": "xx"}, "escapechar"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=why):
            Csv(**options)  # type: ignore[arg-type]
    for first, second in ((Flow.lines, Flow.json_lines), (Flow.csv, Flow.lines), (Flow.csv, Flow.json_lines)):

        def build(scope: Any, first: Any = first, second: Any = second) -> None:
            flow = flow_by_hand(scope)
            first(flow)
            with pytest.raises(BuildError, match="is read twice"):
                second(flow)

        dataflow_example(build)


@pytest.mark.parametrize("seed", range(3))
def test_partitions_are_parsed_while_workers_come_and_go(seed: int) -> None:
    partitions = [["k,n", *(f"{name},{number}" for number in range(40))] for name in "abc"]

    def total(key: str, number: int, state: int | None) -> tuple[int, list[tuple[str, int]]]:
        return (state or 0) + number, [(key, (state or 0) + number)]

    def dataflow(flow: Flow) -> Any:
        return flow.csv().map(lambda row: (row["k"], int(row["n"]))).stateful_state_machine(total)

    cluster = SimulatedCluster(seed)
    cluster.at(record=30, do=Join())
    cluster.at(record=60, do=Leave(seed % 2))
    assert dict(cluster.run(dataflow, lines=partitions)) == dict.fromkeys("abc", 780)


def test_skipped_rows_are_counted_and_the_first_is_reported(tmp_path: Path) -> None:
    path, told = tmp_path / "orders.csv", list[str]()
    path.write_text("a,b\n1,2\n\n3\n4,5\n6,7,8\n'")
    skipped = SkippedLines(lambda about, text: told.append(f"{about}: {text}"))
    assert rows_of(path, as_=tuple, skip=partial(skipped.note, "")) == [("1", "2"), ("4", "5")]
    assert skipped.counts == {"": 3}
    assert len(told) == 1 and says(told[0], f"line 4 of '{path}'", "1 field for 2 columns", "'3'", "skipped")


def test_a_cut_file_needs_rows_of_one_line() -> None:
    inputs = NamedInputs(unordered=[""])
    with pytest.raises(BuildError, match=r"\?unordered splits files .* multiline=False"):
        inputs.parse("", Csv())
    inputs.parse("", Csv(multiline=False))
    inputs.parse("orders", Csv())
    assert {*inputs.formats} == {"", "orders"}

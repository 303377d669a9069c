"""However JSON arrays and multi-line values are read, they equal those of `json.loads` over the whole file."""

import gzip
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megaflow import Flow
from megaflow.control.messages import Split
from megaflow.errors import BuildError, SourceError
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.formats.json_scanner import find_values
from megaflow.job.formats.json_values import JsonValues
from megaflow.job.formats.line_records import LineRecords
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.testing import Crash, Join, Kill, SimulatedCluster, Wait
from tests.examples import many
from tests.job.reading import (
    ENCODE,
    Counted,
    places_of,
    pushed_to,
    queue_of,
    read,
    read_growing,
    read_in_turns,
    read_pushed,
)

CASES = Path(__file__).parent.parent / "cases"
texts = st.text("aé字{}[],:\"\\ \u2028", max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3))
blanks = st.sampled_from(["\n", " ", "\n\n", "\r\n", "\r", "\t\n"])


@st.composite
def files(draw: Any) -> tuple[str, list[Any]]:
    """Return the text of a file, and its records: elements of arrays, and other values."""
    text, records = draw(blanks | st.just("")), list[Any]()
    for _ in range(draw(st.integers(0, 4))):
        value = draw(values)
        records += value if isinstance(value, list) else [value]
        text += json.dumps(value, indent=draw(st.sampled_from([None, 1, "\t"])), ensure_ascii=draw(st.booleans()))
        text += draw(blanks) if not isinstance(value, list | dict | str) else draw(blanks | st.just(""))
    return text, records


def read_file(path: Path, block_bytes: int, steps: list[int], format: JsonValues, *encoding: str) -> list[Any]:
    records, left_out = read_in_turns(path, format, block_bytes, steps, *encoding)
    assert left_out == 0, "values are counted, not lines"
    return records


def values_of(path: Path, **options: Any) -> list[Any]:
    return read(queue_of(*plan_splits([str(path)]), format=JsonValues(**options)))


slices = given(
    file=files(), block_bytes=st.integers(1, 40), steps=st.lists(st.integers(0, 4)),
    suffix=st.sampled_from([*ENCODE]), mark=st.booleans(),
)  # fmt: skip


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@slices
@example(file=("[\n1\n,2]", [1, 2]), block_bytes=1, steps=[1, 0, 1], suffix="", mark=True)
@example(file=('["é", "字"]["é"] 12', ["é", "字", "é", 12]), block_bytes=1, steps=[1, 1], suffix="", mark=True)
def test_any_file_gives_the_values_of_json_however_read(
    tmp_path: Path, file: tuple[str, list[Any]], block_bytes: int, steps: list[int], suffix: str, mark: bool
) -> None:
    text, records = file
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(ENCODE[suffix](("\ufeff" * (mark and suffix != ".utf-16") + text).encode()))
    counted = Counted()
    assert read_file(path, block_bytes, steps, JsonValues()) == records
    assert read_file(path, block_bytes, steps, JsonValues(counted)) == records and not counted.texts


@settings(deadline=None, max_examples=many(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=files(), block_bytes=st.integers(1, 40), steps=st.lists(st.integers(0, 4)),
       errors=st.sampled_from(["strict", "replace"]))  # fmt: skip
def test_other_encodings_give_the_same_values(
    tmp_path: Path, file: tuple[str, list[Any]], block_bytes: int, steps: list[int], errors: str
) -> None:
    text, records = file
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("gb18030"))
    assert read_file(path, block_bytes, steps, JsonValues(), "gb18030", errors) == records


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from([*'{}[],:"', '"a"', '"a":', "1", "-", "é", "\n", " ", "tru", "true", "NaN", "\\"])),
    block_bytes=st.integers(1, 20), steps=st.lists(st.integers(0, 3)),
)  # fmt: skip
@example(pieces=["1", ",", "[", "1", "]"], block_bytes=1, steps=[1])
@example(pieces=["[", "1", "]", "]"], block_bytes=1, steps=[])
def test_any_text_gives_the_same_values_however_read(
    tmp_path: Path, pieces: list[str], block_bytes: int, steps: list[int]
) -> None:
    text = "".join(pieces)
    path, counted = tmp_path / "a.json", Counted()
    path.write_text(text)
    records = read_file(path, block_bytes, [], JsonValues(counted))
    found = find_values(text, True, True)
    assert repr(records) == repr(found.records) and len(counted.texts) == len(found.wrong)
    by_others = read_file(path, block_bytes, steps, JsonValues(Counted()))
    assert repr(by_others[: len(records)]) == repr(records), "a reader that begins at a `]` does not know its `[`"
    assert len(by_others) == len(records) or found.wrong
    try:
        value = json.loads(text)
    except ValueError:
        pass
    else:
        assert repr(records) == repr(value if isinstance(value, list) else [value]) and not counted.texts
    if found.wrong:
        before = list[Any]()
        with pytest.raises(SourceError, match=r"line \d+ of '.*a\.json' is not JSON: .* at column \d+; the line"):
            reader = reader_of(plan_splits([str(path)])[0], "strict", block_bytes, JsonValues())
            while batch := reader.next_batch():
                before += batch
        assert repr(before) == repr(found.records), "all values before a fault come first"


@settings(deadline=None, max_examples=many(200))
@given(file=files(), cut=st.integers(0, 400), change=st.sampled_from(["", '"', "}", "]", "x", ","]))
def test_no_part_of_a_value_is_a_record(file: tuple[str, list[Any]], cut: int, change: str) -> None:
    text, records = file
    whole = find_values(text, True)
    assert whole.records == records
    cut = min(cut, len(text))
    found = find_values(text[:cut], True).records
    if found and found != records[: len(found)]:  # a number at the top level, which may have ended there
        assert isinstance(found.pop(), int | float)
    assert found == records[: len(found)]
    ends = [end for end in whole.ends if end <= cut]
    broken = find_values(text[:cut] + change + text[cut:], True)
    sure = max(0, len(ends) - 1)
    assert broken.records[:sure] == records[:sure], "all before the change is as it was"


@settings(deadline=None, max_examples=many(200))
@given(file=files(), cut=st.integers(0, 400))
@example(file=('["\\ud83d\\ude00", -Infinity, 1.5e-7]', ["😀", float("-inf"), 1.5e-7]), cut=40)
def test_a_text_cut_within_a_value_can_be_read_on(file: tuple[str, list[Any]], cut: int) -> None:
    text, records = file
    for place in range(min(cut, len(text))):
        found = find_values(text[:place], True)
        if found.wrong:
            assert found.open_from is not None, text[:place]
            assert found.records + find_values(text[found.open_from :], True).records == records


@settings(deadline=None, max_examples=many(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=files(), sizes=st.lists(st.integers(0, 9), max_size=20), moves=st.lists(st.booleans()))
@example(file=("\nnull\r", [None]), sizes=[], moves=[])
def test_a_file_that_grows_gives_the_same_values(
    tmp_path: Path, file: tuple[str, list[Any]], sizes: list[int], moves: list[bool]
) -> None:
    path = tmp_path / "a.json"
    source = FollowedFiles(str(path), format=JsonValues())
    records, reader = read_growing(source, path, file[0].encode(), sizes, moves, 2)
    assert records == file[1]
    reader.close()


@settings(deadline=None, max_examples=many(200))
@given(file=files(), sizes=st.lists(st.integers(1, 9)), moves=st.lists(st.booleans()), broken=st.booleans())
def test_standard_input_gives_the_same_values_on_any_workers(
    file: tuple[str, list[Any]], sizes: list[int], moves: list[bool], broken: bool
) -> None:
    text, counted = file[0] + "\n{]\n[1, 2]\n" * broken, Counted()
    records, _ = read_pushed(text.encode(), JsonValues(counted), sizes, moves)
    assert records == file[1] and len(counted.texts) == broken


def test_a_bracket_too_many_is_found_also_by_the_next_worker() -> None:
    counted = Counted()
    queue = pushed_to(JsonValues(counted))
    queue.push(["[1,", "2]"])
    queue.end_pushed(elsewhere=True)
    records = read(queue)
    queue = pushed_to(JsonValues(counted), places_of(queue))
    queue.push(["]", "3"])
    queue.end_pushed()
    assert records + read(queue) == [1, 2] and ["Extra data" in text for text in counted.texts] == [True]


# The cases


@pytest.mark.parametrize("name", ["array.json", "array_lines.json", "pretty.json", "cr.json"])
def test_files_that_json_lines_refuses_are_read(name: str) -> None:
    text = (CASES / name).read_text()
    wanted = [{"a": 1}, {"a": 2}] if name == "cr.json" else json.loads(text)
    wanted = wanted if isinstance(wanted, list) else [wanted]
    assert values_of(CASES / name) == wanted and len(wanted) > 0
    assert values_of(CASES / name, skip=Counted()) == wanted


def test_a_large_array_in_one_line_is_read_piece_by_piece(tmp_path: Path) -> None:
    path, wanted = tmp_path / "a.json", [{"id": number, "name": "é" * (number % 40)} for number in range(40_000)]
    path.write_text(json.dumps(wanted, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    format = JsonValues(bytes_max=1 << 20)
    assert path.stat().st_size > 2 << 20 and read(queue_of(*plan_splits([str(path)]), format=format)) == wanted
    path.write_text(json.dumps({"all": wanted}))
    with pytest.raises(SourceError, match=r"has a JSON value of more than 1 MiB at byte 0\. .* jq -c '\.NAME\[\]'"):
        read(queue_of(*plan_splits([str(path)]), format=format))
    assert values_of(path) == [{"all": wanted}]
    queue = pushed_to(format)
    queue.push(json.dumps({"all": wanted}, indent=1).splitlines())
    with pytest.raises(SourceError, match=r"more than 1 MiB at line 1 of the launcher's input"):
        read(queue)


@pytest.mark.parametrize(
    ("text", "line", "reason", "before"),
    [
        ('[\n {"a": 1},\n {"a": tru},\n {"a": 3}\n]', 3, "Expecting value at column 8", 1),
        ('[\n {"a": 1},\n {"a": 2}\n', 4, "Expecting ',' or ']', but the file ends at column 1", 1),
        ('{"a": 1}\n{"a": 1,\n', 3, "Expecting property name .*, but the file ends at column 1", 1),
        ('[1, 2,]', 1, "Expecting value at column 7", 2),
        ('{"a": 1}}\n', 1, "Expecting value at column 9", 1),
        ('2024-05-01\n', 1, "Extra data at column 5", 0),
        ("[1,\n2]]\n", 2, "Extra data at column 3", 2),
        ("[1]\n,2]\n", 2, "Extra data at column 1", 1),
        ('{"a": 1},\n{"a": 2}\n', 1, "Extra data at column 9", 1),
        ("]\n", 1, "Extra data at column 1", 0),
        ('[1, 2' + ", 3" * 9000 + ' 4]', 1, "Expecting ',' or ']' at column 27007", 9002 - 1),
        ('"a\nb"', 1, "Invalid control character at column 3", 0),
        ("[" * 100_000, 1, "the value is nested too deeply at column 2", 0),
        ("<html>", 1, "Expecting value at column 1", 0),
    ],
)
def test_a_fault_has_its_line_and_column_and_a_remedy(
    tmp_path: Path, text: str, line: int, reason: str, before: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, newline="")
    queue, records = queue_of(*plan_splits([str(path)]), format=JsonValues()), list[Any]()
    why = rf"line {line} of '.*a\.json' is not JSON: {reason}; the line is .*\. Mend the file\. .* single lines\."
    with pytest.raises(SourceError, match=why):
        while (taken := queue.take(0.0)) is not None:
            records += taken[0]
    assert len(records) == before
    counted = Counted()
    assert len(values_of(path, skip=counted)) == before and len(counted.texts) == 1
    assert "so the rest of the file is left out; the line is" in counted.texts[0]


@pytest.mark.parametrize("block_bytes", range(1, 12))
def test_a_line_end_of_two_characters_is_one_in_any_block(block_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("1\r\n[2]\r\n3\r\nx", newline="")
    with pytest.raises(SourceError, match=r"line 4 of .* at column 1;"):
        read_file(tmp_path / "a.json", block_bytes, [], JsonValues())


@pytest.mark.parametrize("skips", [False, True])
def test_a_fault_shows_its_line_with_what_is_before_it(tmp_path: Path, skips: bool) -> None:
    path = tmp_path / "a.json"
    path.write_text('["é",\n  1, // one\n  2\n]')
    for block_bytes in (1, 4, 100):
        counted = Counted()
        format = JsonValues(counted) if skips else JsonValues()
        try:
            assert read_file(path, block_bytes, [], format) == ["é", 1]
        except SourceError as error:
            counted.texts.append(str(error))
        [text] = counted.texts
        assert "line 2 of" in text and "at column 6" in text and "the line is '  1, // one'" in text
    queue = pushed_to(format)
    for line in ("[1, 2 3 // a longer remark", "4]"):
        queue.push([line])
    with pytest.raises(SourceError) if not skips else nullcontext() as refused:
        assert read(queue) == [1]
    text = counted.texts[-1] if refused is None else str(refused.value)
    assert "column 7" in text and "the line is '[1, 2 3 // a longer remark'" in text


def test_a_number_with_too_many_digits_is_left_out_alone(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.json", Counted()
    path.write_text("[1, " + "9" * 5000 + ',\n {"a": [' + "8" * 5000 + "]}, 2]\n3\n")
    assert values_of(path, skip=counted) == [1, 2, 3] and len(counted.texts) == 2
    assert "line 2 of" in counted.texts[1] and "limit" in counted.texts[1] and "rest" not in counted.texts[1]
    with pytest.raises(SourceError, match=r"line 1 of .* Exceeds the limit .*'skip' leaves out this value\."):
        values_of(path)


def test_values_are_those_of_json_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[NaN, -Infinity, {"a": 1, "a": 2}, "\\ud800", 1e400, "\u2028", 0.1, 123456789012345678901]')
    assert repr(values_of(path)) == repr(json.loads(path.read_text()))
    for empty in ("", " \n", "[]", "[ \n]\n[]"):
        path.write_text(empty)
        assert values_of(path) == []


@pytest.mark.parametrize("encoding", ["", "gb18030"])
def test_bytes_that_are_replaced_are_counted_once(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'["a\xff", "b",\n"\xe5", 3]\n["\xff\xff", 5]')
    for block_bytes in (1, 7, 64):
        replaced, records = ReplacedBytes(), list[Any]()
        left: Split | None = plan_splits([str(path)], None, encoding)[0]
        while left is not None:
            reader = reader_of(left, "replace", block_bytes, JsonValues(), replaced)
            batch = reader.next_batch()
            reader.note(max(0, len(batch) - 1))
            left = reader.rest(max(0, len(batch) - 1))
            records += batch[:1]
            reader.close()
        assert [each if isinstance(each, int) else each.replace("\ufffd", "?") for each in records] == [
            "a?", "b", "?", 3, "??", 5,
        ]  # fmt: skip
        assert replaced.counts == {"": 4}


def test_a_damaged_file_gives_the_values_before_and_an_error(tmp_path: Path) -> None:
    path, wanted = tmp_path / "a.json.gz", [{"n": number, "x": "é" * (number % 9)} for number in range(20_000)]
    for indent, format in ((2, JsonValues()), (None, JsonValues()), (1, LineRecords("^ [{]"))):
        data = gzip.compress(json.dumps(wanted, indent=indent).encode())
        path.write_bytes(data[: len(data) // 2])
        reader, records = reader_of(plan_splits([str(path)])[0], "strict", 64, format), list[Any]()
        with pytest.raises(SourceError, match=r"'.*a\.json\.gz'.*(ends|truncated|damaged)"):
            while batch := reader.next_batch():
                records += batch
        reader.close()
        assert len(records) > 1000
        if not isinstance(format, LineRecords):
            assert records == wanted[: len(records)]


def test_what_has_no_order_and_faults_that_grow_are_refused() -> None:
    queue = queue_of(format=JsonValues())
    queue.expect_pushed()
    queue.push(["1"])
    with pytest.raises(SourceError, match=r"flow\.json\(\) reads files.* flow\.json_lines\(\)"):
        read(queue)
    with pytest.raises(BuildError, match=r"The input 'orders' has \?unordered\. .* Leave \?unordered out\."):
        NamedInputs(unordered=["orders"]).parse("orders", JsonValues())
    inputs = NamedInputs(followed={"": lambda format: FollowedFiles("a", format=format)})
    with pytest.raises(BuildError, match=r"The input is followed\. flow\.json\(on_error='skip'\) .* flow\.json_lines"):
        inputs.parse("", JsonValues(Counted()))
    inputs.parse("", JsonValues())


def total(key: str, number: int, state: int | None) -> tuple[int, list[tuple[str, int]]]:
    return (state or 0) + number, [(key, (state or 0) + number)]


def dataflow(flow: Flow) -> Any:
    return flow.json().map(lambda value: (value["k"], value["n"])).stateful_state_machine(total)


@pytest.mark.parametrize("seed", range(2))
def test_arrays_are_exact_while_workers_come_and_are_killed(seed: int) -> None:
    arrays = [json.dumps([{"k": k, "n": n} for n in range(40)], indent=2).splitlines() for k in "abc"]
    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=30, do=Join())
    cluster.at(record=60, do=Kill())
    cluster.at(record=90, do=Crash())
    outputs = cluster.run(dataflow, lines=arrays)
    assert dict(outputs) == dict.fromkeys("abc", 780) and len(outputs) == 120


def test_values_of_a_file_that_grows_come_when_they_are_whole() -> None:
    lines: list[str | Wait] = []
    for number in range(40):
        first, *rest = json.dumps({"k": "a", "n": number}, indent=2).splitlines()
        lines += [first, Wait(0.5), *rest] if number % 7 == 0 else [first, *rest]
    cluster = SimulatedCluster(1, durable=True)
    cluster.at(record=10, do=Kill())
    assert cluster.run(dataflow, lines=[lines])[-1] == ("a", 780)

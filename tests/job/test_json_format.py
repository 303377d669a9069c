"""JSON lines become values. A parse error names the file and line, wherever reading began."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megaflow.control.wording import MARKS, SKIPPED_VALUE_LINES
from megaflow.errors import SourceError
from megaflow.job.files.followed_files import FollowedFile, FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats.json_format import JsonLines
from megaflow.testing import Join, SimulatedCluster
from tests.examples import many
from tests.job.reading import COMPRESS, Counted, queue_of, read, read_growing, read_in_turns

CASES = Path(__file__).parent.parent / "cases"
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("array.json", r"is one JSON value rather than one .*flow\.json\(\).* jq -c '\.\[\]'"),
        ("array_lines.json", r"is one JSON value rather than one .*flow\.json\(\).* jq -c '\.\[\]'"),
        ("pretty.json", r"is one JSON value rather than one .*flow\.json\(\).* jq -c '\.\[\]'"),
        ("pretty_many.json", r"has a value over several lines .*flow\.json\(\).* jq -c '\.'"),
        ("records.json", r"is one JSON value .* jq -c '\.Records\[\]'"),
    ],
)
@pytest.mark.parametrize("skip", [None, Counted()])
def test_a_file_that_is_one_json_value_is_refused(name: str, what: str, skip: Any) -> None:
    with pytest.raises(SourceError, match=rf"{name}' {what} FILE > FILE\.jsonl\.$"):
        read(queue_of(*plan_splits([str(CASES / name)]), format=JsonLines(skip)))


def test_a_first_line_without_a_value_follows_on_error(tmp_path: Path) -> None:
    cut, big, more = CASES / "cut_first.jsonl", CASES / "big_number_first.jsonl", tmp_path / "more.jsonl"
    more.write_text(cut.read_text() + '{"ts": 3}\n')
    for path, count in ((cut, 0), (big, 1), (more, 2)):  # a value in which the file ends is one fault
        splits, counted = plan_splits([str(path)]), Counted()
        assert len(read(queue_of(*splits, format=JsonLines(counted)))) == count
        assert len(counted.texts) == 1 and "line 1 of" in counted.texts[0]
        with pytest.raises(SourceError, match=rf"line 1 of '.*{path.name}' is not JSON"):
            read(queue_of(*splits, format=JsonLines()))


@pytest.mark.parametrize("first", ["9" * 5000, f'{{"a": {"9" * 5000}}}', "[" * 100_000, '{"a":' * 10_000])
def test_a_first_line_that_python_cannot_read_is_one_fault(tmp_path: Path, first: str) -> None:
    path, counted = tmp_path / "a.jsonl", Counted()
    path.write_text(f'{first}\n{{"a": 1}}\n')
    assert read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted))) == [{"a": 1}]
    assert len(counted.texts) == 1
    source = FollowedFiles(str(path), format=JsonLines(counted))
    records, reader = read_growing(source, path, path.read_bytes(), [9, 7_000], [False], 9)
    reader.close()
    assert records == [{"a": 1}] and len(counted.texts) == 2


def test_a_pretty_value_with_a_long_number_gives_no_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[\n{"9" * 5000}\n,\n{{"a": 1}}\n]\n')
    with pytest.raises(SourceError, match="is one JSON value"):
        read(queue_of(*plan_splits([str(path)]), format=JsonLines(Counted())))
    path.write_text(f'0\n[\n{"9" * 5000}\n,\n{{"a": 1}}\n]\n1\n')
    counted = Counted()
    assert read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted, counted.count))) == [0, 1]
    assert len(counted.texts) == 1 and counted.kinds == {SKIPPED_VALUE_LINES: 4}


def test_a_mark_between_joined_files_is_left_out() -> None:
    lines = (CASES / "bom_middle.jsonl").read_text(encoding="utf-8-sig").splitlines()
    for piped in (False, True):
        counted = Counted()
        format = JsonLines(counted, counted.count)
        queue = queue_of(*(() if piped else plan_splits([str(CASES / "bom_middle.jsonl")])), format=format)
        if piped:
            queue.expect_pushed(True)
            queue.push(lines)
            queue.end_pushed()
        assert read(queue) == [{"n": 1}, {"n": 2}, {"n": 3}] and not counted.texts and counted.kinds == {MARKS: 1}


def test_several_values_in_a_line_are_read_if_the_program_says_so(tmp_path: Path) -> None:
    path = CASES / "several.jsonl"
    with pytest.raises(SourceError, match=r"line 1 of .* is not JSON: .*json_lines\(several=True\)"):
        read(queue_of(*plan_splits([str(path)]), format=JsonLines()))
    groups = read(queue_of(*plan_splits([str(path)]), format=JsonLines(several=True)))
    assert groups == [[{"n": 1}, {"n": 2}], [{"n": 3}]]
    path, counted = tmp_path / "a.jsonl", Counted()
    path.write_text('{"a": 1} [2]3 4 "x""y"\n\n{"a": 1}{"a": tru}\n1.5.5\n12 \n')
    wanted = [{"a": 1}, [2], 3, 4, "x", "y", 12]
    groups = read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted, several=True)))
    assert [value for group in groups for value in group] == wanted and len(counted.texts) == 2
    simulated = SimulatedCluster(1)
    simulated.at(record=3, do=Join())
    found = simulated.run(lambda flow: flow.json_lines(several=True), lines=['{"a": 1}{"a": 2}', "3"] * 20)
    assert [repr(each) for each in found].count("3") == 20 and len(found) == 60


@pytest.mark.parametrize("name", ["array_lines.json", "pretty.json"])
@pytest.mark.parametrize("at_once", [True, False])
def test_one_json_value_is_refused_where_the_launcher_reads(name: str, at_once: bool) -> None:
    queue = queue_of(format=JsonLines(Counted()))
    queue.expect_pushed(True)
    lines = (CASES / name).read_text().splitlines()
    records = list[Any]()
    with pytest.raises(SourceError, match=r"the input (is one JSON|has a) value"):
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


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_are_those_of_json_loads(tmp_path: Path, suffix: str) -> None:
    path, counted = tmp_path / f"a.jsonl{suffix}", Counted()
    lines = ['"\u2028\x85"', "NaN", "-Infinity", '{"a": 1, "a": 2}', "1e999", "1" * 21, '"\\ud800"', " [] "]
    path.write_bytes(COMPRESS[suffix](("\ufeff" + "\n".join([*lines, "9" * 5000, "[" * 100_000, '{"a": ["'])).encode()))
    records = read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted)))
    assert repr(records) == repr([*map(json.loads, lines)])
    assert len(counted.texts) == 3


# Values over several lines among lines

inner = st.integers() | st.text("{}[],:\"a1 ", max_size=4)
inner = inner | st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("a1"), inner, min_size=1, max_size=3)
spread = st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("b2"), inner, min_size=1, max_size=3)


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(st.tuples(inner, st.sampled_from(["line", "line", "spread", "cut"])), max_size=9),
    block_bytes=st.integers(1, 40), steps=st.lists(st.integers(0, 3)),
)  # fmt: skip
@example(found=[(1, "line"), ([1, [2], {"a": 3}], "spread"), (4, "line")], block_bytes=1, steps=[1])
@example(found=[(1, "line"), ([1, 2], "cut"), (4, "line"), (5, "line")], block_bytes=1, steps=[1])
def test_no_part_of_a_value_over_lines_is_a_record(
    tmp_path: Path, found: list[tuple[Any, str]], block_bytes: int, steps: list[int]
) -> None:
    lines, wanted, faults = ["0"], [0], 0
    for value, form in found:
        if form == "line" or not isinstance(value, list | dict):
            lines.append(json.dumps(value))
            wanted.append(value)
        elif form == "spread":
            lines += json.dumps(value, indent=1).split("\n")
            faults += 1
        else:
            lines.append(f"{json.dumps(value)[:-1]},")  # cut short, and then a line that cannot go on
            lines.append("}")
            faults += 2
    path, counted = tmp_path / "a.jsonl", Counted()
    path.write_text("".join(f"{line}\n" for line in lines))
    records, _ = read_in_turns(path, JsonLines(counted), block_bytes, steps)
    assert records == wanted and len(counted.texts) == faults
    for at_once in (True, False):
        counted = Counted()
        queue = queue_of(format=JsonLines(counted))
        queue.expect_pushed(True)
        for some in [lines] if at_once else [[line] for line in lines]:
            queue.push(some)
        queue.end_pushed()
        assert read(queue) == wanted and len(counted.texts) == faults


def test_a_line_that_is_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.jsonl", Counted()
    path.write_text('0\n{"a":\n{"a": 1}\n{"a": 2}\n[1,\n[2]\n[3]\n{"a": "x\n4\n')
    wanted = [0, {"a": 1}, {"a": 2}, [2], [3], 4]
    assert read(queue_of(*plan_splits([str(path)]), format=JsonLines(counted))) == wanted and len(counted.texts) == 3
    reader = FollowedFile(FollowedFiles(str(path), format=JsonLines(Counted())), path.stat().st_ino, None)

    def found() -> list[Any]:
        return [each for _ in range(9) if isinstance(answer := reader.read(9), tuple) for each in answer[0]]

    assert found() == wanted
    for text, more in (('{"a":\n', []), ('{"a": 1}\n', []), ('{"a": 2}\n', [{"a": 1}, {"a": 2}])):
        with path.open("a") as file:
            file.write(text)
        assert found() == more, "a line that may go on waits for the next ones"
    reader.close()


@pytest.mark.parametrize("lines", [["{", '"a": 1, "b": tru,', "2", "}"], ["[", *["1,"] * 2000]])
def test_possible_parts_of_a_broken_value_end_a_job_that_skips(tmp_path: Path, lines: list[str]) -> None:
    path, counted, before = tmp_path / "a.jsonl", Counted(), list[Any]()
    path.write_text("\n".join(["0", "x", "1", *lines]))
    queue = queue_of(*plan_splits([str(path)]), format=JsonLines(counted))
    with pytest.raises(SourceError, match=r"line 4 of '.*a\.jsonl' is not JSON: .*; the line is .* by flow\.json\(\)"):
        while (taken := queue.take(0.0)) is not None:
            before += taken[0]
    assert before == [0, 1] and len(counted.texts) == 1
    queue = queue_of(format=JsonLines(Counted()))
    queue.expect_pushed(True)
    queue.push(["0", *lines])
    with pytest.raises(SourceError, match=r"line 2 of the launcher's input is not JSON: .* by flow\.json\(\)"):
        read(queue)

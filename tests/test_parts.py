"""Parts have about the same length, each test is in one of them, and what belongs together stays together."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import parts
from tests.parts import PROCESSES, parse_part, parts_of, read_durations, unit_of
from tests.scheduling import CLUSTERS, OWN_GROUPS

ROOT = Path(__file__).parent.parent
FILES = ["tests/test_a.py", "tests/spark/test_rows.py", *sorted(OWN_GROUPS)[:2], *sorted(CLUSTERS)[:2]]
CASES = st.sets(st.builds("{}::test_{}[{}]".format, st.sampled_from(FILES), st.sampled_from("xy"), st.integers(0, 9)))
SECONDS = st.floats(0.1, 600.0)


@given(cases=CASES, count=st.integers(1, 9), data=st.data())
def test_each_test_is_in_one_part_with_its_group(cases: set[str], count: int, data: st.DataObject) -> None:
    known = sorted(case for case in cases if data.draw(st.booleans()))
    measured = {case: data.draw(SECONDS) for case in known}
    found = parts_of(count, cases, measured)
    assert sorted(case for part in found for case in part.cases) == sorted(cases)
    places = {(unit_of(case), number) for number, part in enumerate(found) for case in part.cases}
    assert len(places) == len({unit for unit, _ in places})
    assert found == parts_of(count, sorted(cases, reverse=True), measured)


@given(seconds=st.lists(SECONDS, min_size=1), count=st.integers(1, 9))
def test_no_part_is_much_longer_than_the_average(seconds: list[float], count: int) -> None:
    measured = {f"tests/test_a.py::test_{number}": each for number, each in enumerate(seconds)}
    parts = parts_of(count, measured, measured)
    average = sum(seconds) / count / PROCESSES
    assert max(part.seconds_with() for part in parts) <= average + max(seconds)


def test_new_tests_are_spread() -> None:
    measured = {f"tests/test_a.py::test_{number}": 1.0 for number in range(24)}
    new = {f"tests/test_b.py::test_{number}" for number in range(8)}
    assert [len(part.cases & new) for part in parts_of(8, measured.keys() | new, measured)] == [1] * 8


def test_a_test_longer_than_the_others_together_is_a_part_of_its_own() -> None:
    measured = {"long": 1000.0, **{f"tests/test_a.py::test_{number}": 2.0 for number in range(100)}}
    assert {"long"} in [part.cases for part in parts_of(8, measured, measured)]


def test_tests_that_take_no_time_are_spread() -> None:
    measured = {f"tests/test_a.py::test_{number}": 0.0 for number in range(80)}
    assert [len(part.cases) for part in parts_of(8, measured, measured)] == [10] * 8


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/", "a/b", "1/0", "1/2/3", "+1/2", "１/２", "1 / 2", ""])
def test_a_part_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="3/8 is the third of eight"):
        parse_part(text)


@pytest.mark.parametrize("text", ["", "<<<<<<< ours", "[]", "null", '{"a": "b"}', '{"a": [1]}'])
def test_damaged_durations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(parts, "DURATIONS", tmp_path / "durations.json")
    assert read_durations() == {}
    parts.DURATIONS.write_text(text)
    with pytest.raises(pytest.UsageError, match=r"durations\.json is damaged: "):
        read_durations()


def test_measured_tests_name_files_that_exist() -> None:
    assert not [case for case in read_durations() if not (ROOT / case.partition("::")[0]).exists()]

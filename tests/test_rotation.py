"""Each case of the rotating slow tests has its turn, and no function is ever without a case."""

from tests.rotation import BY_FILE, SHARES, WHOLE, cases_of

COUNTS = {"a": 1, "b": 2, "c": 7}
CASES = [f"test_{name}.py::test_it[{number}]" for name, count in COUNTS.items() for number in range(count)]


def test_every_case_has_its_turn() -> None:
    turns = [cases_of(rotation, CASES) for rotation in range(SHARES)]
    assert set().union(*turns) == set(CASES)
    assert max(map(len, turns)) <= len(CASES) / 2


def test_each_function_has_a_case_in_each_turn() -> None:
    for rotation in (0, 1, 2, 0xABC1234):
        assert {case.partition("[")[0] for case in cases_of(rotation, CASES)} == {
            "test_a.py::test_it", "test_b.py::test_it", "test_c.py::test_it"
        }  # fmt: skip


def test_each_search_has_a_planted_fault_in_each_turn() -> None:
    faults = ["test_a.py::test_fault[moves: one]", "test_a.py::test_fault[graphs: two: three]"]
    assert cases_of(1, faults) == set(faults)


def test_whole_functions_run_all_their_cases() -> None:
    for function in WHOLE:
        cases = [f"{function}[{number}]" for number in range(5)]
        assert cases_of(1, cases) == set(cases)


def test_whole_functions_exist() -> None:
    for function in WHOLE:
        path, _, name = function.partition("::")
        with open(path, encoding="utf-8") as file:
            assert f"def {name}(" in file.read(), function


def test_files_that_take_minutes_have_one_quarter_in_each_turn() -> None:
    for file in BY_FILE:
        cases = [f"{file}::test_{number}" for number in range(SHARES)]
        assert [len(cases_of(rotation, cases)) for rotation in range(SHARES)] == [1] * SHARES

"""Keys and outputs that would silently make results wrong end the job with the record, in real processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run

pytestmark = pytest.mark.cluster

APP = """
def count(key, n, total):
    total = (total or 0) + n
    return total, [(key, total)]

def brackets(key, n, total):
    total = (total or 0) + n
    return total, [(key, total)] if total < 3 else (key, total)

def trail(key, n, seen):
    seen = seen or []
    seen.append(n)
    return seen, [(key, seen)]

def dataflow(flow):
    key, fold = flow.args
    keys = {"number": float, "tuple": lambda line: (float(line), 1), "line": str}
    return flow.lines().map(lambda line: (keys[key](line), 1)).stateful_state_machine(globals()[fold])
"""


@pytest.fixture
def fold(start: Callable[..., Run], tmp_path: Path) -> Callable[..., str]:
    """Fold lines that are all the same. The job must fail; return its messages."""

    def run(line: str, key: str, fold: str, processes: int) -> str:
        app, lines = tmp_path / "app.py", tmp_path / "lines.txt"
        app.write_text(APP)
        lines.write_text(f"{line}\n" * 20_000)
        job = start(str(app), "--lines", str(lines), "--processes", str(processes), "--output", "none", "--", key, fold)
        code, _, said = job.end()
        assert code == 1, said
        return "".join(said)

    return run


@pytest.mark.parametrize(
    ("key", "shown", "processes"), [("number", "nan", 1), ("number", "nan", 2), ("tuple", "(nan, 1)", 2)]
)
def test_nan_in_a_key_is_refused_by_any_number_of_processes(
    fold: Callable[..., str], key: str, shown: str, processes: int
) -> None:
    said = fold("nan", key, "count", processes)
    assert "NaN cannot be a key" in said and "in operator 'count" in said and f"record ({shown}, 1)" in said


def test_forgotten_brackets_end_the_job_with_the_remedy(fold: Callable[..., str]) -> None:
    said = fold("a", "line", "brackets", 2)
    assert "return state, [('a', 3)]" in said and "in operator 'brackets' (" in said and "record ('a', 1)" in said


def test_the_check_for_aliasing_reaches_the_processes_of_a_job(
    fold: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing")
    said = fold("a", "line", "trail", 2)
    assert "the fold for key 'a' returned [1] as an output or in one, and it is now [1, 1]" in said
    assert "in operator 'trail' (" in said and "record ('a', 1)" in said

"""`job.control.get` returns states as they are, and refuses an instance of a class that is not imported here."""

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.cluster.processes import Run
from tests.results import check_equal

pytestmark = pytest.mark.cluster

STATES = {
    "tuple": (10, 45), "list": [1, (2, 3)], "bytes": b"\xff", "date": date(2026, 11, 29), "set": {1, 2}, "1": {1: "a"},
    "number": 1j,
}  # fmt: skip

APP = """
from dataclasses import dataclass

@dataclass
class Basket:
    apples: int

def dataflow(flow):
    baskets = flow.lines().map(lambda line: (line, Basket(3)))
    return baskets.stateful_state_machine(lambda key, basket, last: (basket, [key]), name="baskets")
"""


def last_value(flow: megaflow.Flow) -> Any:
    """Keep the last value of each key."""
    values: Any = flow.items()
    return values.stateful_state_machine(lambda key, value, last: (value, [key]), name="last")


def test_a_state_comes_as_the_value_that_it_is() -> None:
    def pairs() -> Iterator[tuple[str, Any]]:
        while True:
            yield from STATES.items()

    with megaflow.start(last_value, items=pairs(), rate=1000) as job:
        seen: set[str] = set()
        for key in job.outputs():
            seen.add(key)
            if seen == {*STATES}:
                break
        found = {key: job.control.get("last", key) for key in STATES}
        missing = job.control.get("last", "none")
        job.stop()
    check_equal(found, STATES)
    check_equal(missing, None)
    assert type(found["tuple"]) is tuple and type(found["list"][1]) is tuple


def test_a_class_that_is_not_imported_is_named(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "basket_app.py").write_text(APP)
    (tmp_path / "in.txt").write_text("ada\n")
    run = start(str(tmp_path / "basket_app.py"), "--lines", str(tmp_path / "in.txt"), "--follow", "--name", "baskets")
    run.status_when(lambda status: sum(worker["lines"] for worker in status["workers"]) == 1)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    [job] = megaflow.jobs()
    with pytest.raises(UsageError, match=r"'ada'.*basket_app.*Basket"):
        job.control.get("baskets", "ada")
    assert "apples=3" in run.control("get", "baskets", "ada").stdout
    assert run.control("stop").returncode == 0
    assert run.end()[0] == 0

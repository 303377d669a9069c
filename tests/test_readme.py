"""What the README shows of Python runs, and does what is said beside it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.testing import SimulatedCluster

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def shown(name: str) -> Callable[..., Any]:
    """The function of this name in the README."""
    (block,) = [block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if f"def {name}(" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    function: Callable[..., Any] = names[name]
    return function


def run(operator: str, fold: Callable[..., Any], feed: list[Any]) -> list[Any]:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return getattr(records, operator)(fold, control=commands)

    return SimulatedCluster(1, 2).run(build, {0: feed})


def test_counts() -> None:
    feed = [(0, ("a", 1)), (1, ("b", 1)), (2, ("a", 1))]
    assert run("stateful_state_machine", shown("count"), feed) == [(0, ("a", 1)), (1, ("b", 1)), (2, ("a", 2))]


def test_a_trail_is_emitted_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing")
    feed = [(0, ("ada", "home")), (0, ("ada", "cart")), (1, ("ada", "paid"))]
    pages = [pages for _, (_, pages) in run("stateful_state_machine", shown("trail"), feed)]
    assert pages == [("home",), ("home", "cart"), ("home", "cart", "paid")]


@pytest.mark.parametrize("clicks_per_epoch", [1, 3, 100])
def test_totals_come_to_the_same_whatever_the_length_of_an_epoch(clicks_per_epoch: int) -> None:
    feed = [(click // clicks_per_epoch, (user, click)) for click in range(100) for user in ("ada", "bob")]
    outputs = [record for _, record in run("stateful_unary", shown("totals"), feed)]
    assert dict(outputs) == {"ada": 100, "bob": 100}, "the last of each"
    assert len(outputs) == 2 * -(-100 // (clicks_per_epoch * 21)), "one for the clicks of some 20 epochs"

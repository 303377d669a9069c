"""Programs of the documentation on simulated clusters, with more inputs and workers than in `test_docs`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.bench.migration import EXPERIMENTS as MIGRATION
from apps.bench.rescaling import EXPERIMENTS as RESCALING
from megaflow import Window
from megaflow.megaphone.base.routing import Watermark
from megaflow.program import example
from megaflow.testing import EngineCluster, SimulatedCluster

ROOT = Path(__file__).parent.parent
SCALE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
DOCS = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))


def test_the_experiments_that_the_page_on_scale_names_are_those_of_the_benchmarks() -> None:
    named = re.findall(r"\(`(\w+)`\)", SCALE)
    assert {*named} <= {each.name for each in (*RESCALING, *MIGRATION)} and "workers" in named


def code_with(words: str) -> str:
    """Return the only block of Python in the pages of docs/ that contains these words."""
    [block] = [block for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL) if words in block]
    return str(block)


@pytest.mark.slow
def test_a_dataflow_is_tested_on_a_simulated_cluster() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_with("SimulatedCluster"), "docs", "exec"), names)
    made: list[SimulatedCluster] = []
    names["SimulatedCluster"] = lambda *args, **options: made.append(SimulatedCluster(*args, **options)) or made[-1]
    names["test_words_are_counted"]()
    names["test_nothing_is_lost_or_doubled"]()
    assert len(made) == 10 and not [each.refusals for each in made[:5] if each.refusals]
    assert all(len(each.happened) == 2 for each in made[:5])


def test_it_finds_what_is_wrong() -> None:
    wrong = code_with("SimulatedCluster").replace("return total, [(word, total)]", "return n, [(word, total)]")
    names: dict[str, Any] = {}
    exec(compile(wrong, "docs", "exec"), names)
    with pytest.raises(AssertionError) as raised:
        names["test_words_are_counted"]()
    assert any("MEGAFLOW_SEED=0" in note for note in raised.value.__notes__)


def outputs(operator: str, words: str, name: str, feed: list[Any]) -> list[Any]:
    """Return the outputs of a fold of the documentation, from the block with these words."""
    names: dict[str, Any] = {}
    exec(compile(code_with(words), "docs", "exec"), names)
    fold: Callable[..., Any] = names[name]

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return getattr(records, operator)(fold, control=commands)

    return EngineCluster(1, 2).run(build, {0: feed})


def test_the_first_fold_counts() -> None:
    feed = [(0, ("a", 1)), (1, ("b", 1)), (2, ("a", 1))]
    counts = outputs("stateful_state_machine", "# apps/wordcount.py", "count", feed)
    assert counts == [(0, ("a", 1)), (1, ("b", 1)), (2, ("a", 2))]


def test_a_trail_is_emitted_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing")
    feed = [(0, ("ada", "home")), (0, ("ada", "cart")), (1, ("ada", "paid"))]
    trails = outputs("stateful_state_machine", "# trail.py", "trail", feed)
    assert [pages for _, (_, pages) in trails] == [("home",), ("home", "cart"), ("home", "cart", "paid")]


@pytest.mark.parametrize("clicks_per_epoch", [1, 3, 100])
def test_totals_come_to_the_same_whatever_the_length_of_an_epoch(clicks_per_epoch: int) -> None:
    feed = [(click // clicks_per_epoch, (user, click)) for click in range(100) for user in ("ada", "bob")]
    totals = [record for _, record in outputs("stateful_unary", "def totals(", "totals", feed)]
    assert dict(totals) == {"ada": 100, "bob": 100}, "the last of each"
    assert len(totals) == 2 * -(-100 // (clicks_per_epoch * 21)), "one for the clicks of some 20 epochs"


def test_words_are_counted_and_the_longest_found() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_with("aggregate_by_key"), "docs", "exec"), names)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return names["dataflow"](SimpleNamespace(lines=lambda: records))

    outputs = EngineCluster(1, 2).run(build, {0: [(0, "a bee a"), (1, "apple bee")], 1: [(0, "a")]})
    assert [sorted(map(str, (record for at, record in outputs if at == time))) for time in (0, 1)] == [
        ["('a', 1)", "('a', 3)", "('b', 3)", "('bee', 1)"],
        ["('a', 5)", "('apple', 1)", "('b', 3)", "('bee', 2)"],
    ]


def test_event_time_is_taken_from_where_it_stands() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_with("datetime.fromisoformat(order"), "docs", "exec"), names)
    orders = [{"at": f"2026-03-01T10:00:0{n}Z", "total": n} for n in (2, 0, 1)]

    def build(scope: Any) -> Any:
        return names["dataflow"](SimpleNamespace(json_lines=lambda: scope.to_stream(orders))).capture()

    [(_, pairs)] = example(build)
    assert [(at.second, order["total"]) for at, order in pairs] == [(1, 1), (2, 2)]


def test_sessions_close_when_the_watermark_is_past_them() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_with("sessions.collect()"), "docs", "exec"), names)
    clicks = [(0, 100, "a"), (0, 50, "b"), (2, 20, "late"), (2, 5_000, "c")]
    lines = [(time, json.dumps({"at": at, "user": "anna", "page": page})) for time, at, page in clicks]
    watermarks = [(1, Watermark(1_960_000_000)), (3, Watermark(9_000_000_000))]
    outputs = EngineCluster(1, 1).run(names["dataflow"], {0: lines}, watermarks)
    assert outputs == [
        (1, ("anna", Window(50, 1900), ["b", "a"])),
        (3, ("anna", Window(5000, 6800), ["c"])),
    ]

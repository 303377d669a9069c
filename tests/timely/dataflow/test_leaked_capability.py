"""A capability that is lost while held causes a warning with the line that made it; any other causes none."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megaflow.timely import Capability, InputHandle, Pipeline
from megaflow.timely.dataflow.leaked_capability import LostCapability
from tests.timely.workers import by_hand

pytestmark = pytest.mark.usefixtures("quick_collections")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lost() -> Iterator[list[warnings.WarningMessage]]:
    """Record the warnings."""
    gc.collect()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


def line_of(text: str) -> int:
    """Return the only line of this file that ends in a marker."""
    [number] = [n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"# {text}")]
    return number


def check(seen: list[warnings.WarningMessage], marker: str) -> None:
    """Check that there is one warning, at the marked line."""
    gc.collect()
    [warning] = [each for each in seen if issubclass(each.category, ResourceWarning)]
    assert issubclass(warning.category, LostCapability)
    assert (warning.filename, warning.lineno) == (__file__, line_of(marker))
    text = str(warning.message)
    assert "garbage-collected without release()" in text and "'Loser'" in text
    assert text.endswith(f"made at {__file__}:{line_of(marker)}")


def flow(build: Callable[[Capability, Any], Any]) -> tuple[Any, Any, InputHandle[int]]:
    """Run an input and an operator with this logic for a while, with one record."""
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.unary_frontier(Pipeline(), "Loser", build).probe()
    handle.send(1)
    handle.advance_to(1)
    for _ in range(5):
        worker.step()
    return hand, worker, handle


def test_a_retained_one_that_is_dropped(lost: list[warnings.WarningMessage]) -> None:
    def build(capability: Capability, info: Any) -> Any:
        capability.release()
        stash: dict[Any, Any] = {}

        def logic(source: Any, output: Any) -> None:
            for time, data in source:
                stash[time.retain()] = data  # retained
            for each in [each for each in stash if not source.frontier.less_equal(each.time)]:
                del stash[each]

        return logic

    _, worker, _ = flow(build)
    check(lost, "retained")
    assert worker.installed_dataflows


def test_a_delayed_one_and_a_clone(lost: list[warnings.WarningMessage]) -> None:
    def build(capability: Capability, info: Any) -> Any:
        capability.delayed(7)  # delayed
        capability.release()
        return lambda source, output: None

    flow(build)
    check(lost, "delayed")


def test_retaining_twice_in_one_run_is_one_capability_though_nobody_keeps_it(
    lost: list[warnings.WarningMessage],
) -> None:
    def build(capability: Capability, info: Any) -> Any:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, _ in source:
                time.retain()
                time.retain().release()

        return logic

    _, worker, handle = flow(build)
    handle.close()
    worker.step()
    worker.step()
    assert not worker.installed_dataflows
    assert lost == []


@pytest.mark.parametrize("end", ["released", "dropped", "forgotten with its worker", "failed"])
def test_no_warning_when_it_does_not_matter(lost: list[warnings.WarningMessage], end: str) -> None:
    kept: list[Capability] = []

    def build(capability: Capability, info: Any) -> Any:
        kept.append(capability)

        def logic(source: Any, output: Any) -> None:
            mine = kept  # noqa: F841
            if end == "failed":
                raise ValueError("a mistake")

        return logic

    if end == "failed":
        with pytest.raises(ValueError, match="a mistake"):
            flow(build)
    else:
        hand, worker, handle = flow(build)
        if end == "released":
            kept[0].release()
        elif end == "dropped":
            worker.drop_dataflow(0)
            worker.step()
            worker.step()
        else:
            own = [kept.pop()]
            worker.dangling = own  # only the worker's own garbage refers to it
            del own
        del hand, worker, handle
    kept.clear()
    del build
    gc.collect()
    assert [str(each.message) for each in lost] == []


def test_no_warning_for_a_dataflow_whose_block_raised(lost: list[warnings.WarningMessage]) -> None:
    _, worker = by_hand()
    with pytest.raises(KeyError), worker.dataflow() as scope:
        scope.new_input()[1].unary(Pipeline(), "Loser", lambda capability, info: lambda source, output: capability)
        raise KeyError
    gc.collect()
    assert lost == []


PROGRAM = """
import sys
from megaflow.timely import Pipeline, example

def careless(capability, info):
    info.activator.activate()
    def logic(source, output):
        for time, data in source:
            capability.delayed(5)
        capability.release()
    return logic

def build(scope):
    return scope.to_stream([1]).unary(Pipeline(), "Careless", careless).probe()

def main(worker):
    with worker.dataflow() as scope:
        probe = build(scope)
    for _ in range(5):
        worker.step()
    worker.drop_dataflow(0)

from megaflow.timely import Config, execute
execute(Config.thread(), main)
"""


@pytest.mark.parametrize(("options", "shown"), [([], True), (["-W", "ignore"], False), (["-X", "dev"], True)])
def test_python_shows_the_warning_unless_told_otherwise(tmp_path: Path, options: list[str], shown: bool) -> None:
    program = tmp_path / "careless.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *options, str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    line = PROGRAM.splitlines().index("            capability.delayed(5)") + 1
    assert (f"{program}:{line}: LostCapability: a capability of output 0 of 'Careless'" in done.stderr) is shown

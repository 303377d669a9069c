"""A Python function travels to the worker processes."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from megaflow import spark
from megaflow.errors import MegaflowError, StoreError, UsageError
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.program.program_modules import source_of
from megaflow.job.launcher.run.python_function import run
from megaflow.timely.communication.codec.array_types import LIBRARIES
from megaflow.timely.communication.codec.encode import of_main
from tests.test_floor_plan import ROOT
from tests.words import says


def outer(word: str) -> str:
    return inner(word) * 2


def inner(word: str) -> str:
    return word + "!"


def call_elsewhere(function: Any) -> str:
    """Unpickle and call a function in a new interpreter that knows nothing of this test."""
    packed = pickle_app(function)
    code = (
        "import sys, cloudpickle\n"
        f"sys.path[:] = {packed.path!r}\n"
        "print(cloudpickle.loads(bytes.fromhex(sys.stdin.read()))('a'))"
    )
    run = [sys.executable, "-c", code]
    return subprocess.run(run, input=packed.data.hex(), stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def test_functions_travel_by_name_or_whole(tmp_path: Path) -> None:
    assert call_elsewhere(str.upper) == "A"
    prefix = ">"
    assert call_elsewhere(lambda word: prefix + word) == ">a"
    path = tmp_path / "unfindable.py"
    path.write_text("def helper(x):\n    return x + '?'\n\ndef function(x):\n    return helper(x)\n")
    spec = importlib.util.spec_from_file_location("unfindable", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unfindable"] = module
    try:
        spec.loader.exec_module(module)
        assert call_elsewhere(module.function) == "a?"
    finally:
        del sys.modules["unfindable"]


def test_a_function_of_a_test_module_travels() -> None:
    assert call_elsewhere(outer) == "a!a!"


def test_only_libraries_that_are_imported_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert pickle_app(str.upper).libraries == ()
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    assert pickle_app(str.upper).libraries == ("pandas",)


class Opaque:
    """A class that a script registers."""


def test_a_registration_that_cannot_be_pickled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter(letter for letter in "lock")
    monkeypatch.setitem(of_main, Opaque, (lambda value: letters, lambda value: Opaque()))
    with pytest.raises(UsageError, match=r"registration of Opaque cannot be sent to the workers: .*generator"):
        pickle_app(lambda flow: flow.lines())


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a function"):
        pickle_app("dataflow")  # type: ignore[arg-type]


def test_what_is_refused_names_the_arguments_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^state: Standard input and iterables .* name that file by lines\.$"):
        run(print, lines=["a"], state=tmp_path / "store")
    with pytest.raises(UsageError, match=r"^checkpoint_every must be a number of seconds above 0, not 0\.$"):
        run(print, lines=["a"], state=tmp_path / "store", checkpoint_every=0)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").write_text("mine")
    with pytest.raises(StoreError, match=r"was given to a job with state$"):
        run(print, lines=__file__, state=tmp_path / "store", take_over=True)


def test_a_function_that_takes_more_than_the_flow_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"as in dataflow\(flow\), not <lambda>\(word, n, total\)"):
        pickle_app(lambda word, n, total: None)
    for fitting in (lambda flow, fast=False: None, lambda *flows: None, print):
        assert pickle_app(fitting)


def test_what_is_sent_along_with_a_function_is_its_file_or_its_package_and_nothing_that_is_installed() -> None:
    assert pickle_app(outer).file == str(ROOT / "tests")
    assert pickle_app(str.upper).file == source_of(pytest) == ""


def test_where_processes_are_to_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"^on= yarn: must be spark or spark:MASTER"):
        run(print, lines=["a"], on="yarn")
    with pytest.raises(UsageError, match=r"^on must be 'spark', 'spark:MASTER' or a SparkSession, not 7 \(int\)"):
        run(print, lines=["a"], on=7)
    with pytest.raises(UsageError, match=r"^conf spark.x: there is|^conf applies to processes that Spark runs"):
        run(print, lines=["a"], conf={"spark.x": "1"})
    with pytest.raises(UsageError, match=r"^on= spark:local\[1\]: 2 worker processes need 2 slots, but Spark has 1:"):
        run(print, lines=["a"], on="spark:local[1]", processes=2)
    with pytest.raises(UsageError, match=r"^The rows 'orders' must be a DataFrame of Spark, not 'orders.csv' \(str\)"):
        spark.run({"orders": "orders.csv"}, print)


@pytest.mark.parametrize("more", [{}, {"follow": True}])
def test_error_leaves_commands_for_the_shell_as_they_are(more: dict[str, Any]) -> None:
    with pytest.raises(MegaflowError) as refused:
        run(outer, lines="/dev/null", **more)
    assert says(str(refused.value), "it is a device", "cat /dev/null | megaflow run … --lines -")


def test_error_names_arguments_in_place_of_options() -> None:
    with pytest.raises(UsageError, match=r"^processes: 1000 is more .* give oversubscribe\.$"):
        run(outer, lines=["a"], processes=1000)

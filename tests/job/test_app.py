"""FILE[:FUNCTION] is found without running the file, and functions travel."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.job.app import find_app, pickle_app

APP = """
import sys as system
raise SystemExit("nobody runs this")
def dataflow(flow): pass
async def later(): pass
class Thing: pass
if True:
    other = lambda flow: None
    first, (second, third) = 1, (2, 3)
try:
    from os import path as where
except ImportError:
    where2 = None
with open("x") as opened:
    def inside(): hidden = 1
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.mark.parametrize("name", ["dataflow", "Thing", "other", "third", "where", "where2", "opened", "inside"])
def test_any_name_bound_at_the_top_level_will_do(app: Path, name: str) -> None:
    found = find_app(f"{app}:{name}")
    assert (found.path, found.function) == (str(app), name)


def test_the_function_defaults_to_dataflow(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_app(str(app)).function == "dataflow"
    monkeypatch.chdir(app.parent)
    assert find_app("app.py").path == str(app)  # absolute: the children may see another folder


def test_a_wrong_name_gets_the_right_one_shown(app: Path) -> None:
    with pytest.raises(UsageError, match=r"no function 'dataflw'; did you mean 'dataflow'\? There are: dataflow"):
        find_app(f"{app}:dataflw")
    with pytest.raises(UsageError, match="no function 'hidden'"):
        find_app(f"{app}:hidden")
    with pytest.raises(UsageError, match=r"no file '.*ap\.py'; did you mean '.*app\.py'\?"):
        find_app(str(app.with_name("ap.py")))
    with pytest.raises(UsageError, match="no file"):
        find_app(str(app.parent))


def test_what_cannot_be_judged_is_left_to_the_run(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    for text in ("from x import *", "def ("):
        path.write_text(text)
        assert find_app(f"{path}:anything").function == "anything"


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


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a function"):
        pickle_app("dataflow")  # type: ignore[arg-type]

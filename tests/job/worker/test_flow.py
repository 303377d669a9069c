"""A worker process finds the user's function in its file, with the modules beside it, or unpickles it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from megaflow.errors import UsageError
from megaflow.job.spec import AppFile, PickledFunction
from megaflow.job.worker.process.program_loading import App, load


@pytest.fixture(autouse=True)
def unchanged_imports() -> Iterator[None]:
    path, modules, finders = list(sys.path), set(sys.modules), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_may_import_its_neighbours_and_its_types_can_be_found(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_app.py").write_text("ANSWER = 42\n")
    (tmp_path / "some_app.py").write_text(
        "import neighbour_of_app\nclass Word: pass\ndef dataflow(flow): return neighbour_of_app.ANSWER, Word\n"
    )
    answer, word = load(AppFile(str(tmp_path / "some_app.py"), "dataflow"))(None)
    assert answer == 42
    assert sys.modules["some_app"].Word is word


def test_a_file_named_like_a_known_module_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def dataflow(flow): return 'mine'\n")
    import_before = sys.modules.get("json")
    assert load(AppFile(str(tmp_path / "json.py"), "dataflow"))(None) == "mine"
    assert sys.modules.get("json") is import_before


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty_app.py").write_text("")
    with pytest.raises(UsageError, match="'flowdata'"):
        load(AppFile(str(tmp_path / "empty_app.py"), "flowdata"))


def test_what_the_module_raises_comes_through(tmp_path: Path) -> None:
    (tmp_path / "broken_app.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load(AppFile(str(tmp_path / "broken_app.py"), "dataflow"))


def test_a_pickled_function_is_made_with_the_launchers_path() -> None:
    path = tuple(sys.path)
    sys.path.append("/not/here")
    assert load(PickledFunction(cloudpickle.dumps(lambda flow: flow + 1), path))(1) == 2
    assert tuple(sys.path) == path


def test_a_process_imports_the_libraries_of_the_launcher() -> None:
    sys.modules.pop("colorsys", None)
    app = PickledFunction(cloudpickle.dumps(str.upper), (*sys.path,), libraries=("colorsys", "not_installed_here"))
    assert load(app)("a") == "A" and "colorsys" in sys.modules


def test_where_the_launcher_may_not_be_a_pickled_function_finds_what_was_sent_before_what_is_there() -> None:
    path = [*sys.path]
    assert load(PickledFunction(cloudpickle.dumps(lambda flow: flow + 1), ("/sent",), elsewhere=True))(1) == 2
    found, sys.path[:] = [*sys.path], path
    assert found == ["/sent", *path]


def test_the_workers_of_a_process_share_one_module(tmp_path: Path) -> None:
    (tmp_path / "shared_app.py").write_text("def dataflow(flow): pass\n")
    app = App(AppFile(str(tmp_path / "shared_app.py"), "dataflow"))
    assert app.function() is app.function()

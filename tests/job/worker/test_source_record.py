"""The fingerprint covers the bytes of the app and of the modules beside it that were run, and nothing else."""

import os
import py_compile
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder, SourceFileLoader
from pathlib import Path

import pytest

import megaflow
from megaflow.job.spec import AppFile, PickledFunction
from megaflow.job.worker.process.fingerprint import Fingerprint
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.source_record import SourceRecord

ROOT = Path(__file__).parents[3]


@contextmanager
def fresh_imports() -> Iterator[None]:
    """Forget the modules imported in the block after it."""
    path, modules, finders = list(sys.path), set(sys.modules), list(sys.meta_path)
    try:
        yield
    finally:
        sys.path[:], sys.meta_path[:] = path, finders
        for name in set(sys.modules) - modules:
            del sys.modules[name]


def taken(folder: Path, text: str, *args: str) -> Fingerprint:
    """Return the fingerprint of an app with this text once its dataflow is built, as if in a process of its own."""
    path = folder / "noted_app.py"
    path.write_text(text)
    with fresh_imports():
        app = App(AppFile(str(path), "dataflow"))
        app.function()(None)
        code = app.fingerprint(args)
    assert code is not None
    return code


def test_the_app_and_what_it_has_imported_from_its_folder_and_below_is_noted(tmp_path: Path) -> None:
    (tmp_path / "beside_app.py").write_text("import json\n")
    (tmp_path / "below_app").mkdir()
    (tmp_path / "below_app" / "__init__.py").write_text("from . import deep\n")
    (tmp_path / "below_app" / "deep.py").write_text("")
    (tmp_path / "lazy_app.py").write_text("")
    (tmp_path / "unused_app.py").write_text("")
    text = "import beside_app, below_app, colorsys\ndef dataflow(flow):\n    import lazy_app\n"
    code = taken(tmp_path, text, "a", "b")
    names = ["noted_app.py", "beside_app.py", "below_app/__init__.py", "below_app/deep.py", "lazy_app.py"]
    assert sorted(code.files) == sorted(names), "lazy_app was imported while the dataflow was built"
    assert code.app == "noted_app.py:dataflow" and code.args == ("a", "b")


def test_what_counts_is_what_was_run_and_not_what_the_file_has_become(tmp_path: Path) -> None:
    neighbour = tmp_path / "changing_app.py"
    neighbour.write_text("N = 1\n")
    text = f"import changing_app\ndef dataflow(flow): open({str(neighbour)!r}, 'w').write('N = 2\\n')\n"
    before, after = taken(tmp_path, text), taken(tmp_path, text)
    assert before.files["noted_app.py"] == after.files["noted_app.py"]
    assert before.files["changing_app.py"] != after.files["changing_app.py"]
    assert taken(tmp_path, text) == after


def test_bytecode_that_is_older_than_its_source_is_not_run(tmp_path: Path) -> None:
    neighbour = tmp_path / "stale_app.py"
    neighbour.write_text("N = 1\n")
    py_compile.compile(str(neighbour))
    times = neighbour.stat()
    neighbour.write_text("N = 2\n")  # same length and modification time as before
    os.utime(neighbour, ns=(times.st_atime_ns, times.st_mtime_ns))
    taken(tmp_path, "import stale_app\ndef dataflow(flow): assert stale_app.N == 2\n")


def test_libraries_are_not_noted_wherever_they_lie(tmp_path: Path) -> None:
    installed = tmp_path / "venv" / "lib" / "python3" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_app.py").write_text("")
    text = f"import sys\nsys.path.append({str(installed)!r})\nimport installed_app\ndef dataflow(flow): pass\n"
    assert list(taken(tmp_path, text).files) == ["noted_app.py"]


@pytest.mark.parametrize(("folder", "noted"), [("/", False), (sysconfig.get_path("stdlib"), True), (str(ROOT), False)])
def test_python_and_megaflow_are_no_neighbours_unless_the_app_lies_among_them(folder: str, noted: bool) -> None:
    record = SourceRecord(folder)
    for name, path in ("colorsys", None), ("megaflow.errors", megaflow.__path__):
        spec = PathFinder.find_spec(name, path)  # a new one, even if the module was imported
        assert spec is not None
        record.note_loads(spec)
        assert (type(spec.loader) is not SourceFileLoader) is (noted and name == "colorsys"), name


def test_of_an_extension_the_bytes_of_its_file_are_noted(tmp_path: Path) -> None:
    file = tmp_path / f"binary_app{EXTENSION_SUFFIXES[0]}"
    digests = []
    for data in (b"one", b"two"):
        file.write_bytes(data)
        record = SourceRecord(str(tmp_path))
        assert record.find_spec("binary_app", [str(tmp_path)]) is not None
        digests.append(record.digests[file.name])
    assert digests[0] != digests[1]


def test_a_pickled_function_has_no_fingerprint() -> None:
    assert App(PickledFunction(b"", ())).fingerprint(()) is None


def test_built_in_modules_are_still_found_before_files_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "time.py").write_text("raise AssertionError('a file beside the app, not the clock')\n")
    text = "import sys\nsys.modules.pop('time')\nimport time\ndef dataflow(flow): pass\n"
    script = (
        "import sys\n"
        "from megaflow.job.worker.process.program_loading import App; from megaflow.job.spec import AppFile\n"
        "app = App(AppFile(sys.argv[1], 'dataflow')); app.function(); print(*app.fingerprint(()).files)\n"
    )
    path = tmp_path / "noted_app.py"
    path.write_text(text)
    words = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("noted_app.py\n", "")


def test_the_record_of_the_last_app_is_the_one_that_notes(tmp_path: Path) -> None:
    (tmp_path / "beside_app.py").write_text("")
    with fresh_imports():
        SourceRecord("/elsewhere").install()
        code = taken(tmp_path, "import beside_app\ndef dataflow(flow): pass\n")
    assert sorted(code.files) == ["beside_app.py", "noted_app.py"]

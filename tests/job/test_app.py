"""`FILE[:FUNCTION]` and `MODULE[:FUNCTION]` are found without running any code."""

from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.job.app import find_app
from tests.rights import without_rights

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
        find_app(str(app.parent / "nowhere"))


def test_a_folder_is_named_as_one_with_its_program(app: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"' is a folder: name a file in it, as in '.*/app\.py'\."):
        find_app(str(app.parent))
    (tmp_path / "dir.py").mkdir()
    with pytest.raises(UsageError, match=r"dir\.py' is a folder: name a file in it\."):
        find_app(f"{tmp_path}/dir.py:dataflow")


def test_a_program_that_cannot_be_read_is_refused_in_a_sentence(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.chmod(0)
    monkeypatch.syspath_prepend(str(app.parent))
    for name in (str(app), "app"):
        with without_rights(), pytest.raises(UsageError, match="Permission denied") as refused:
            find_app(name)
        assert f"Cannot read the program '{name}'" in str(refused.value)
    locked = tmp_path / "locked"
    locked.mkdir(0)
    with without_rights(), pytest.raises(UsageError, match=r"locked/app\.py': Permission denied\."):
        find_app(str(locked / "app.py"))


SIGNATURES = """
def count(word, n, total): pass
def nothing(): pass
def named(*, flow): pass
def dataflow(flow, more=1): pass
def other(flow, /, *, debug=False): pass
def split(line): pass
def any_number(*args): pass
@decorated
def changed(a, b): pass
"""


def test_a_function_that_cannot_take_a_flow_is_refused_with_those_that_can(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SIGNATURES)
    for name in ("dataflow", "other", "split", "any_number", "changed"):
        assert find_app(f"{path}:{name}").function == name
    for name, shown in (("count", "word, n, total"), ("nothing", ""), ("named", r"\*, flow")):
        meant = rf"dataflow\(flow\); did you mean {path}:dataflow or {path}:other\?$"
        with pytest.raises(UsageError, match=rf"app.py:{name} takes \({shown}\), not only the flow; .*{meant}"):
            find_app(f"{path}:{name}")
    path.write_text("def count(word, n, total): pass")
    with pytest.raises(UsageError, match=r"app\.py defines none"):
        find_app(f"{path}:count")


@pytest.mark.parametrize(
    "text",
    [
        "dataflow = 3", "dataflow: dict = {}", "def dataflow(flow): pass\ndataflow = [1]",
        "async def dataflow(flow): pass",
    ],
)
def test_what_is_plainly_no_function_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "app.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{path}:dataflow in line \d is not a function\. .* def dataflow\(flow\)"):
        find_app(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "dataflow = made()", "dataflow = 3\ndef dataflow(flow): pass", "dataflow = None\nif x: dataflow = y",
        "class dataflow: pass",
    ],
)
def test_what_may_be_a_function_is_left_to_the_run(tmp_path: Path, text: str) -> None:
    path = tmp_path / "app.py"
    path.write_text(text)
    assert find_app(str(path)).function == "dataflow"


def test_what_cannot_be_judged_is_left_to_the_run(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    for text in ("from x import *", "def ("):
        path.write_text(text)
        assert find_app(f"{path}:anything").function == "anything"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `pkg.deep.app` in the current directory. Its packages must not run."""
    folder = tmp_path / "pkg" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("raise SystemExit('nobody runs this')")
    (folder / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_is_found_from_the_current_directory_and_its_packages_are_not_run(package: Path) -> None:
    found = find_app("pkg.deep.app:other")
    assert (found.path, found.function, found.module) == (str(package / "pkg/deep/app.py"), "other", "pkg.deep.app")
    assert (found.root, found.folder, found.name) == (str(package), str(package), "pkg.deep.app:other")
    assert find_app("pkg.deep.app").function == "dataflow" and find_app("pkg/deep/app.py").module == ""
    (package / "pkg" / "__init__.py").write_text("def dataflow(flow): pass")
    whole = find_app("pkg")
    assert (whole.root, whole.shipped, whole.module) == (str(package), str(package / "pkg"), "pkg")


def test_a_module_is_found_where_python_looks_and_an_installed_one_is_no_more_than_its_package(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (package / "pkg").rename(installed / "pkg")
    monkeypatch.syspath_prepend(str(installed))
    found = find_app("pkg.deep.app")
    assert (found.root, found.folder) == (str(installed), str(installed / "pkg"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pkg.deep.ap", r"there is no file 'pkg.deep.ap', and the package 'pkg.deep' has no module 'pkg.deep.ap'; "
                        r"did you mean 'pkg.deep.app'\?$"),
        ("pgk.deep.app:dataflow", r"where Python looks, has no module 'pgk'; did you mean 'pkg.deep.app'\?$"),
        ("pkg.deep.app.dataflow", r"'pkg.deep.app' is a module, not a package, .*; did you mean pkg.deep.app:data"),
        ("pkg.deep.app:dataflw", r"^pkg.deep.app has no function 'dataflw'; did you mean 'dataflow'\?"),
        ("nowhere", "there is no file 'nowhere', and .* has no module 'nowhere'$"),
        ("pkg/deep/app:dataflow", r"there is no file 'pkg/deep/app'; did you mean 'pkg/deep/app.py'\?"),
        ("pkg.deep", "the module 'pkg.deep' has no Python source"),
    ],
)  # fmt: skip
def test_a_wrong_module_gets_the_right_one_shown(package: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_app(text)

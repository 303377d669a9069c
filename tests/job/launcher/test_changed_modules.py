"""Changes of a script in imported modules reach the workers or are refused."""

import functools
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.program.changed_modules import compare
from megaflow.job.launcher.program.function_pickler import pickle_app, pickle_by_value
from megaflow.job.spec import ModuleChange, WithTypes
from megaflow.job.worker.process.program_loading import load
from tests.results import check_equal

RATES = '''
"""Rates."""
import functools, os
from shared_constants import BASE, shared as borrowed

RATE = 2
DAY = 24 * 60 * 60
TABLE = {"EUR": 1.1}
PAIR = (1, [2])
client = None
COMPUTED = float("2")
THRESHOLD = 5
LIMIT = 1
LIMIT = 3
square = lambda x: x * x
hits = 0
REGISTRY = {}
_cache = {}
_pid = None

def convert(x):
    return x * RATE

def kept(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@kept
def decorated(x):
    return x + RATE

@functools.cache
def cached(x):
    return x

def price(code):
    return TABLE[code] if code in TABLE else TABLE.get(code)

def count():
    global hits
    hits += 1
    return hits

def configure(value):
    global THRESHOLD
    THRESHOLD = value

def register(function):
    REGISTRY[function.__name__] = function
    return function

def remember(x):
    return _cache.setdefault(x, x)

def _begin():
    global _pid
    _pid = os.getpid()

_begin()

@register
def plugin():
    pass

class Trade:
    fee = 3
    made = 0
    __slots__ = ("x",)
    def __init__(self, x=0):
        self.x = x
        Trade.made += 1
    def total(self):
        return self.x + self.fee
    @property
    def double(self):
        return 2 * self.x

class Special(Trade):
    fee = 4

if __name__ == "__main__":
    RATE = 9
'''
CONSTANTS = "BASE = 10\ndef shared(x):\n    return x + BASE\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "shared_constants.py").write_text(CONSTANTS)
    (tmp_path / "rates.py").write_text(RATES)
    yield tmp_path
    for name in ("rates", "shared_constants"):
        sys.modules.pop(name, None)


def changes_of(function: Callable[[Any], Any], pickle: Callable[[Any], object]) -> tuple[ModuleChange, ...]:
    return compare(function, pickle)[0]


def script(text: str) -> Callable[[Any], Any]:
    """Run a script, or the cells of a notebook; return its function `f`."""
    names: dict[str, Any] = {"__name__": "__main__", "functools": functools, "SimpleNamespace": SimpleNamespace}
    exec(compile(text, "<cell>", "exec"), names)
    function: Callable[[Any], Any] = names["f"]
    return function


def changed(text: str) -> dict[str, Any]:
    """Return the functions that a script sends to its workers, by name."""
    found = changes_of(script("import rates\n" + text), pickle_by_value)
    return {f"{each.holder}.{each.name}".lstrip("."): each.value for each in found}


@pytest.mark.parametrize(
    "text, sent",
    [
        ("rates.RATE = 7\nf = lambda x: rates.RATE", {"RATE": 7}),
        ("rates.RATE = 7\nf = lambda x: rates.convert(x)", {"RATE": 7}),
        ("rates.RATE = 7\nf = rates.convert", {"RATE": 7}),
        ("rates.RATE = 7\nf = functools.partial(rates.convert)", {"RATE": 7}),
        ("rates.RATE = 7\nf = functools.cache(rates.convert)", {"RATE": 7}),
        ("rates.RATE = 7\nf = rates.decorated", {"RATE": 7}),
        ("rates.RATE = 7\ndef f(x):\n    from rates import RATE\n    return RATE", {"RATE": 7}),
        ("rates.RATE = 7\ndef f(x):\n    import rates\n    return rates.convert(x)", {"RATE": 7}),
        ("rates.RATE = 7\ntable = {'a': [rates.convert]}\nf = lambda x: table['a'][0](x)", {"RATE": 7}),
        ("rates.RATE = 2.0\nf = lambda x: rates.RATE", {"RATE": 2.0}),
        ("rates.RATE = None\nf = lambda x: rates.RATE", {"RATE": None}),
        ("rates.DAY = 3600\nf = lambda x: rates.DAY", {"DAY": 3600}),
        ("rates.PAIR[1].append(3)\nf = lambda x: rates.PAIR", {"PAIR": (1, [2, 3])}),
        ("rates.TABLE['EUR'] = 2\nf = rates.price", {"TABLE": {"EUR": 2}}),
        ("rates.TABLE = {}\nf = rates.price", {"TABLE": {}}),
        ("rates.client = SimpleNamespace(a=1)\nf = lambda x: rates.client", {"client": SimpleNamespace(a=1)}),
        ("rates.configure(8)\nf = lambda x: rates.THRESHOLD", {"THRESHOLD": 8}),
        ("rates.BASE = 11\nf = lambda x: rates.BASE", {"BASE": 11}),
        ("import shared_constants\nshared_constants.BASE = 11\nf = lambda x: rates.borrowed(x)", {"BASE": 11}),
        ("rates.Trade.fee = 9\nf = lambda x: rates.Trade(x).total()", {"Trade.fee": 9}),
        ("rates.Trade.fee = 9\nf = lambda x: rates.Special(x).total()", {"Trade.fee": 9}),
        ("trade = rates.Trade()\nrates.Trade.fee = 9\nf = lambda x: trade.total()", {"Trade.fee": 9}),
    ],
)
def test_changed_values_are_sent(modules: Path, text: str, sent: dict[str, Any]) -> None:
    assert changed(text) == sent


@pytest.mark.parametrize(
    "text, result",
    [
        ("rates.convert = lambda x: 'other'\nf = lambda x: rates.convert(x)", "other"),
        ("rates.decorated = lambda x: 'other'\nf = lambda x: rates.decorated(x)", "other"),
        ("rates.square = lambda x: 'other'\nf = lambda x: rates.square(x)", "other"),
        ("rates.cached = lambda x: 'other'\nf = lambda x: rates.cached(x)", "other"),
        ("rates.COMPUTED = lambda: 'other'\nf = lambda x: rates.COMPUTED()", "other"),
        ("rates.convert = rates.square\nf = lambda x: rates.convert(x)", 9),
        ("rates.convert = functools.cache(rates.convert)\nf = lambda x: rates.convert(x)", 6),
        (
            "def timed(function):\n    @functools.wraps(function)\n    def inner(x):\n"
            "        return 1000 + function(x)\n    return inner\n"
            "rates.convert = timed(rates.convert)\nf = lambda x: rates.convert(x)",
            1006,
        ),
        ("rates.convert = rates.kept(rates.convert)\nrates.RATE = 5\nf = lambda x: rates.convert(x)", 15),
        ("rates.Trade.total = lambda self: 'other'\nf = lambda x: rates.Special(x).total()", "other"),
        ("rates.TABLE['EUR'] = 'other'\nf = lambda x: rates.price('EUR')", "other"),
    ],
)
def test_changed_functions_are_called_in_workers(modules: Path, text: str, result: object) -> None:
    function = script("import rates\n" + text)
    assert function(3) == result
    packed = pickle_app(function)
    code = (
        "import pickle, sys\n"
        f"sys.path[:] = {packed.path!r}\n"
        "from megaflow.job.spec import PickledFunction\n"
        "from megaflow.job.worker.process.program_loading import load\n"
        f"print(load(PickledFunction(bytes.fromhex(sys.stdin.read()), {packed.path!r}))(3))"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, input=packed.data.hex(), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == str(result), done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "f = lambda x: (rates.convert(x), rates.DAY, rates.PAIR, rates.price('EUR'), rates.Special(x).double)",
        "rates.count()\nf = lambda x: rates.count()",
        "rates.remember(1)\nf = lambda x: rates.remember(x)",
        "rates.register(lambda x: x)\nf = lambda x: rates.REGISTRY",
        "rates.Trade()\nf = lambda x: rates.Trade(x).made",
        "f = lambda x: rates._pid",
        "rates.RATE = 7\nf = lambda x: x",
        "rates.RATE = 7\ndef f(x):\n    rates.RATE = 7\n    return rates.convert(x)",
        "rates.LIMIT = 4\nf = lambda x: rates.LIMIT",
        "rates.client = (x for x in ())\nf = lambda x: rates.client",
        "from rates import Trade\nTrade.__doc__ = 'Other.'\nrates.convert.seen = 1\nf = lambda x: rates.Trade(x)",
        "f = rates.cached",
        "rates.cached(1)\nf = lambda x: rates.cached(x)",
    ],
)
def test_what_workers_have_or_change_themselves_is_left(modules: Path, text: str) -> None:
    assert changed(text) == {}


def test_a_changed_value_that_cannot_be_sent_is_refused(modules: Path) -> None:
    for name in ("RATE", "convert", "TABLE"):
        with pytest.raises(UsageError, match=rf"changed '{name}' of the module 'rates', .*'builtins.generator'"):
            changed(f"rates.{name} = (x for x in ())\nf = lambda x: rates.{name}")


EDITED = {
    "another function": ("x * RATE", "x * RATE * 2"),
    "another constant": ("x + RATE", "x + RATE + 1"),
    "no such function": ("def convert", "def turned"),
    "a syntax error": ("def price(code):", "def price(code:"),
}


@pytest.mark.parametrize("old, new", EDITED.values(), ids=EDITED)
def test_a_file_edited_after_its_import_is_refused(modules: Path, old: str, new: str) -> None:
    function = script("import rates\nf = lambda x: rates.convert(x) + rates.decorated(x)")
    assert changes_of(function, pickle_by_value) == ()
    (modules / "rates.py").write_text(RATES.replace(old, new))
    with pytest.raises(UsageError, match=r"^rates.py was changed after this program imported it"):
        changes_of(function, pickle_by_value)


REWRITTEN = """
def rewritten(function):
    more = {}
    exec(compile("def total(x):\\n    assert x\\n    return x + 1", __file__, "exec"), more)
    function.__code__ = more["total"].__code__
    return function

@rewritten
def total(x):
    return x + 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the start of a process is not known elsewhere")
def test_code_that_a_decorator_rewrites_is_left(modules: Path) -> None:
    """Modify a function as typeguard does. As this process started before the file existed, it looks like an edit."""
    (modules / "shared_constants.py").write_text(REWRITTEN)
    text = "import shared_constants\nf = lambda x: shared_constants.total(x)\n"
    with pytest.raises(UsageError, match="was changed after this program imported it"):
        changes_of(script(text), pickle_by_value)
    later = text + "from megaflow.job.launcher.program.function_pickler import pickle_app\npickle_app(f)"
    subprocess.run([sys.executable, "-c", later], cwd=modules, timeout=300, check=True)


def test_an_edited_file_is_read_again_after_a_reload(modules: Path) -> None:
    reload = "import importlib, pathlib, rates\nfile = pathlib.Path(rates.__file__)\n"
    reload += "file.write_text(file.read_text().replace('x * RATE', 'x - RATE'))\nimportlib.reload(rates)\n"
    assert changes_of(script(reload + "f = lambda x: rates.convert(x)"), pickle_by_value) == ()


def test_code_that_a_reload_puts_into_functions_is_that_of_the_file(modules: Path) -> None:
    """Modify a method as IPython's autoreload does, which compiles it within a class of its own."""
    body = "    def total(self):\n        return self.x - self.fee\n"
    function = script("import rates\nf = lambda x: rates.Trade(x).total()")
    (modules / "rates.py").write_text(RATES.replace("self.x + self.fee", "self.x - self.fee"))
    made: dict[str, Any] = {}
    exec(compile("class Patch:\n" + body, sys.modules["rates"].__file__ or "", "exec"), made)
    sys.modules["rates"].Trade.total.__code__ = made["Patch"].total.__code__
    assert changes_of(function, pickle_by_value) == ()


@pytest.mark.parametrize(
    "old, new",
    [
        ("x * RATE", "x * RATE  # times"),
        ("import functools, os", "import functools, os\n\n\n\n"),
        ("def remember(x):", "def remembered(x):"),
        ('"""Rates."""', '"""Other rates."""'),
    ],
)
def test_edits_that_the_flow_does_not_reach_are_left(modules: Path, old: str, new: str) -> None:
    function = script("import rates\nf = lambda x: rates.convert(x)")
    (modules / "rates.py").write_text(RATES.replace(old, new))
    assert changes_of(function, pickle_by_value) == ()


def test_a_value_edited_in_the_file_stays_as_it_was_imported(modules: Path) -> None:
    function = script("import rates\nf = lambda x: rates.convert(x)")
    (modules / "rates.py").write_text(RATES.replace("RATE = 2", "RATE = 3"))
    assert [(each.name, each.value) for each in changes_of(function, pickle_by_value)] == [("RATE", 2)]


def test_a_deleted_file_and_a_foreign_loader_are_left(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = script("import rates\nrates.RATE = 7\nf = lambda x: rates.convert(x)")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["rates"], "__loader__", object())
        assert changes_of(function, pickle_by_value) == ()
    (modules / "rates.py").unlink()
    assert changes_of(function, pickle_by_value) == ()


def test_nothing_is_sent_along_if_nothing_was_changed(modules: Path) -> None:
    assert not isinstance(pickle.loads(pickle_app(script("import rates\nf = rates.convert")).data), WithTypes)


def test_a_worker_that_starts_after_an_edit_is_refused(modules: Path) -> None:
    packed = pickle_app(script("import rates\nf = rates.convert"))
    assert [Path(file).name for file, _ in packed.files] == ["rates.py"]
    assert load(packed)(1) == 2
    (modules / "rates.py").write_text(RATES + "# more")
    with pytest.raises(UsageError, match=r"^rates.py has changed since the job started"):
        load(packed)
    assert load(replace(packed, elsewhere=True))(1) == 2


SCRIPT = """
import megaflow, rates

rates.RATE = 7
rates.TABLE["EUR"] = 5

def f(x):
    return rates.convert(x), rates.price("EUR")

if __name__ == "__main__":
    print(f(1), megaflow.run(lambda flow: flow.items().map(f), items=[1]))
"""


@pytest.mark.cluster
def test_workers_see_changes_of_a_script(modules: Path) -> None:
    path = modules / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=750, check=False)
    assert done.returncode == 0, done.stderr
    check_equal(done.stdout, "(7, 5) [(7, 5)]\n", done.stderr)

"""An error that the program raises in a worker keeps its class, and no code of the program runs to restore it."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import BuildError, MegaflowError, PeerFailed
from megaflow.job.launcher.program.typed_failure import typed

CLASSES: list[type[Exception]] = [
    ValueError, KeyError, ZeroDivisionError, FileNotFoundError, TimeoutError, UnicodeDecodeError, SyntaxError,
    ImportError, AttributeError, BuildError, BlockingIOError, AssertionError, RecursionError,
    MemoryError, SystemError, EOFError, OverflowError,
]  # fmt: skip


class NoPrice(LookupError):
    """An error whose own code must not run here."""

    __slots__ = ("item",)

    def __new__(cls, *_: Any) -> "NoPrice":
        raise AssertionError("__new__ runs")

    def __init__(self, item: str, count: int) -> None:
        raise AssertionError("__init__ runs")

    def __str__(self) -> str:
        raise AssertionError("__str__ runs")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("__setattr__ runs")


class Registered(Exception):
    """An error that notices its subclasses."""

    def __init_subclass__(cls) -> None:
        raise AssertionError("__init_subclass__ runs")


class Counting(type):
    """A metaclass."""


class Counted(Exception, metaclass=Counting):
    """An error of a metaclass."""


def name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@pytest.mark.parametrize("cls", [*CLASSES, NoPrice], ids=lambda cls: cls.__name__)
def test_a_failure_is_of_both_classes_and_has_its_text(cls: type[Exception]) -> None:
    text = "Traceback\nin operator 'Map'"
    found = typed(PeerFailed(text, name_of(cls)))
    assert isinstance(found, cls) and isinstance(found, PeerFailed)
    assert (str(found), found.args, type(found).__name__) == (text, (text,), cls.__name__)
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is PeerFailed and str(again) == text
    with pytest.raises(cls):
        raise found


@pytest.mark.parametrize(
    "name",
    [
        "", "no.such.module:Error", "builtins:int", "builtins:NoSuchError", "builtins:StopIteration",
        "builtins:StopAsyncIteration", "builtins:KeyboardInterrupt", "builtins:SystemExit", "builtins:Exception",
        "builtins:ExceptionGroup", "sys:modules.os.error", "a:b:c", name_of(PeerFailed), name_of(MegaflowError),
        name_of(Registered), name_of(Counted),
    ],
)  # fmt: skip
def test_other_names_leave_a_failure_as_it_is(name: str) -> None:
    failure = PeerFailed("text", name)
    assert typed(failure) is failure


def test_other_errors_stay_as_they_are() -> None:
    error = OSError("disk")
    assert typed(error) is error


def raising(error: Exception) -> Any:
    def fail(line: str) -> str:
        raise error

    return lambda flow: flow.lines().map(fail)


@pytest.mark.cluster
def test_a_program_catches_the_class_that_its_dataflow_raises() -> None:
    with pytest.raises(FileNotFoundError, match="in operator 'Map'") as caught:
        megaflow.run(raising(FileNotFoundError(2, "no file", "prices")), lines=["a"])
    assert isinstance(caught.value, PeerFailed) and "No such" not in str(caught.value)
    with pytest.raises(TimeoutError, match="late"), megaflow.start(raising(TimeoutError("late")), lines=["a"]) as job:
        for _ in job.outputs():
            pass
    with pytest.raises(PeerFailed, match="StopIteration"):
        megaflow.run(raising(StopIteration()), lines=["a"])


@pytest.mark.cluster
def test_errors_keep_the_class_of_an_imported_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices_of_a_test.py").write_text(
        "class Missing(LookupError):\n    def __init__(self, item, count): super().__init__(item)\n"
        "def price(item): raise Missing(item, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import prices_of_a_test as prices  # type: ignore[import-not-found]

    with pytest.raises(prices.Missing, match="Missing: tea"):
        megaflow.run(lambda flow: flow.lines().map(prices.price), lines=["tea"])

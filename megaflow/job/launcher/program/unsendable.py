"""Finds the variable of a program that cannot be sent to the workers, so that the error can name it.

Pickle names the type of the object that it refuses, not the variable that holds it. The search starts at the dataflow
function and follows references. Each step goes to a part that cannot be pickled by itself, until no such part is left.
The search does not look into objects of libraries: users know a connection by its class, not by its locks. It only runs
after pickle has failed, so its cost does not matter.
"""

import ast
import contextlib
import functools
import inspect
import io
import linecache
import os
from collections.abc import Callable, Iterator
from itertools import chain
from types import FunctionType, GeneratorType, MethodType
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.job.app import top_level_names
from megaflow.job.launcher.program.source_bindings import globals_of
from megaflow.job.made_anew import is_cached, is_generic, travels_by_value
from megaflow.quick_dataclass import dataclass

HOLDERS: Final[dict[type, tuple[str, ...]]] = {
    MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
    property: ("fget", "fset", "fdel"),
}
"""Attributes with the functions and values that an object of a library holds."""


@dataclass(frozen=True, slots=True)
class Step:
    """One reference on the way to the object that cannot be sent."""

    to: Any
    variable: str = ""  # its name, if a function's variable is the reference
    user: Any = None  # that function
    attribute: str = ""  # its name, if an attribute is the reference


def unsendable(function: Callable[..., Any], pickle: Callable[[Any], object], error: Exception) -> UsageError:
    """Return the error for a dataflow function that `pickle` refuses with `error`."""
    steps = [*_way(function, pickle)]
    last, reason = (steps[-1].to, _reason(steps[-1].to, pickle)) if steps else (function, "")
    at = max((index for index, step in enumerate(steps) if step.variable), default=-1)
    attributes = ".".join(step.attribute for step in steps[at + 1 :] if step.attribute)
    dataflow = _name(function)
    holder = f"its attribute {attributes!r} holds" if attributes else "it holds" if at < len(steps) - 1 else "it is"
    what = f"{holder} {described(last)}"
    if at < 0:
        reason = f"{what}{reason}" if steps else f"{type(error).__name__}: {str(error).rstrip('.')}"
        return UsageError(
            f"The dataflow {dataflow} cannot be sent to the workers: {reason}. Create such objects in the dataflow "
            "function, which each worker calls."
        )
    step = steps[at]
    user, where = _name(step.user), place_of(step.user, step.variable)
    also = "" if step.user is function else f", or in {user} at its first call"
    return UsageError(
        f"The variable {step.variable!r}{where}, which {user} uses, cannot be sent to the workers: {what}{reason}. "
        f"Create it in {dataflow}, which each worker calls{also}."
    )


def _name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "the lambda" if name == "<lambda>" else repr(name)


def _way(function: Any, pickle: Callable[[Any], object]) -> Iterator[Step]:
    """Yield the references from the function to the object that cannot be sent."""
    met, at = {id(function)}, Step(function)
    while at is not None:
        parts = [step for step in _parts(at.to) if id(step.to) not in met]
        met.update(id(step.to) for step in parts)
        at = next((step for step in parts if _error(step.to, pickle) is not None), None)  # type: ignore[assignment]
        if at is not None:
            yield at


def _error(value: Any, pickle: Callable[[Any], object]) -> Exception | None:
    try:
        pickle(value)
    except Exception as error:  # objects may raise anything
        return error
    return None


def _reason(value: Any, pickle: Callable[[Any], object]) -> str:
    """Return pickle's reason for refusing an object, if it says more than the type."""
    error = _error(value, pickle)
    text = "" if error is None else str(error).rstrip(".")
    return "" if not text or text.startswith("cannot pickle") else f" ({type(error).__name__}: {text:.200})"


def described(value: Any) -> str:
    """Return what an object is, for a message."""
    if isinstance(value, io.IOBase):
        return "an open file"
    if isinstance(value, GeneratorType):
        return "a generator"
    kind = type(value)
    return f"an object of type '{kind.__module__}.{kind.__qualname__}'"


def _parts(value: Any) -> Iterator[Step]:
    """Yield the references of an object."""
    if is_cached(value):
        yield Step(value.__wrapped__)
    elif is_generic(value):
        yield from map(Step, value.registry.values())
    elif isinstance(value, FunctionType | type) and not travels_by_value(value):
        return
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        for name, each in {**vars(value)}.items():
            yield Step(each, attribute=name)
    elif names := next((names for kind, names in HOLDERS.items() if isinstance(value, kind)), ()):
        yield from (Step(getattr(value, name)) for name in names)
    elif isinstance(value, dict):
        yield from map(Step, (*value.values(), *value))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from map(Step, value)
    elif travels_by_value(type(value)):
        yield from (Step(each, attribute=name) for name, each in attributes_of(value))


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each attribute of an object, including slots."""
    yield from {**getattr(value, "__dict__", {})}.items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each variable in a function's closure, without empty cells."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _of_function(function: FunctionType) -> Iterator[Step]:
    yield from (Step(each, name, function) for name, each in closure_of(function))
    for name in dict.fromkeys(globals_of(function.__code__)):
        if name in function.__globals__:
            yield Step(function.__globals__[name], name, function)
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.default is not parameter.empty:
            yield Step(parameter.default, name, function)
    yield from map(Step, (*vars(function).values(), *function.__annotations__.values()))


def place_of(user: FunctionType, name: str) -> str:
    """Return the place in the source where a variable that a function uses gets its value, as text in parentheses."""
    file = user.__code__.co_filename
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook cell with commands
        return ""
    scopes: list[Any] = [tree]
    if name in user.__code__.co_freevars:
        scopes = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [line for scope in scopes for line in _lines(scope, name)]
    return f" ({os.path.basename(file)}, line {lines[-1]})" if lines else ""


def _lines(scope: Any, name: str) -> Iterator[int]:
    """Yield the line of each statement in a block of code that gives the name a value."""
    blocks = (getattr(scope, field, ()) for field in ("body", "handlers", "orelse", "finalbody"))
    for statement in chain.from_iterable(blocks):
        if name in top_level_names([statement]):
            is_scope = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = [] if is_scope else [*_lines(statement, name)]
            yield from inner or [statement.lineno]

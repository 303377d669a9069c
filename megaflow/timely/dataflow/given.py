"""What a program gives to a call, held to what was asked for while the dataflow is built, where the line is known."""

from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.error_notes import user_line

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def function(verb: str, given: F, parameter: str = "f") -> F:
    """Return what was given. Raises BuildError unless it can be called."""
    if not callable(given):
        raise BuildError(f"{verb} ({user_line()}): {parameter} must be a function, not {shown(given)}")
    return given


def instance(verb: str, given: T, kind: type | tuple[type, ...], what: str) -> T:
    """Return what was given. Raises BuildError unless it is of that kind; `what` says in words what to give."""
    if not isinstance(given, kind):
        raise BuildError(f"{verb} ({user_line()}): give it {what}, not {shown(given)}")
    return given


def iterable(verb: str, given: T, what: str) -> T:
    """Return what was given. Raises BuildError unless it can be iterated over."""
    try:
        iter(given)  # type: ignore[call-overload]
    except TypeError:
        raise BuildError(f"{verb} ({user_line()}): give it {what}, not {shown(given)}") from None
    return given


def shown(value: object) -> str:
    """Return the value and its type, for a message.

    >>> shown(3), shown(None)
    ('3, a value of type int', 'None')
    """
    return "None" if value is None else f"{value!r:.200}, a value of type {type(value).__name__}"

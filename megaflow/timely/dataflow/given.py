"""What a program gives to a call, held to what was asked for while the dataflow is built, where the line is known."""

from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.pact import Exchange, Pact, PactOrClass, pact_of

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


def name(given: str, what: str) -> str:
    """Return the name that was given to something. Raises BuildError unless it is a text."""
    if not isinstance(given, str) or not given:
        raise BuildError(f"{given!r} ({user_line()}) cannot be the name of {what}; give it a text that is not empty")
    return given


def pact(verb: str, given: PactOrClass) -> Pact:
    """Return the pact that is meant. Raises BuildError if it is none, or one by no function."""
    meant = pact_of(given)
    if meant is None:
        raise BuildError(f"{verb} ({user_line()}): {given!r} is not a pact; write Pipeline, Exchange(key) or Broadcast")
    if isinstance(meant, Exchange):
        function(verb, meant.key, "the key of an exchange")
    return meant


def shown(value: object) -> str:
    """Return the value and its type, for a message.

    >>> shown(3), shown(None)
    ('3, a value of type int', 'None')
    """
    return "None" if value is None else f"{value!r:.200}, a value of type {type(value).__name__}"

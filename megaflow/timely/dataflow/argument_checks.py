"""Checks of the arguments that a program passes, made while the dataflow is built, when the user's line is known."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.pact import Exchange, Pact, PactOrClass, pact_of

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_ASYNC = 0x80 | 0x200  # CO_COROUTINE and CO_ASYNC_GENERATOR of the module inspect
_GENERATOR = 0x20  # CO_GENERATOR


def function(verb: str, given: F, parameter: str = "f") -> F:
    """Return the argument. Raises BuildError unless it can be called and returns its result at once."""
    if not callable(given):
        raise BuildError(f"{verb} ({user_line()}): {parameter} must be a function, not {shown(given)}")
    if _flags(given) & _ASYNC:
        raise BuildError(
            f"{verb} ({user_line()}): {parameter} is 'async def {getattr(given, '__name__', '…')}', and an operator "
            "does not await what it calls. Write a plain 'def'; inside it, asyncio.run(…) awaits a coroutine."
        )
    return given


def no_generator(verb: str, given: F, parameter: str) -> F:
    """Return the function. Raises BuildError if a call returns a generator."""
    if _flags(given) & _GENERATOR:
        raise BuildError(
            f"{verb} ({user_line()}): {parameter} {getattr(given, '__name__', '…')!r} has 'yield', so a call returns a "
            "generator. Let it return the new state and a list of outputs instead."
        )
    return given


def _flags(given: Any) -> int:
    """Return the flags of a function's code, 0 if it is written in C. Importing `inspect` for this would be slow."""
    while isinstance(given, partial):
        given = given.func
    code = getattr(given, "__code__", None) or getattr(type(given).__call__, "__code__", None)
    return 0 if code is None else int(code.co_flags)


def instance(verb: str, given: T, kind: type | tuple[type, ...], what: str) -> T:
    """Return the argument. Raises BuildError unless it is of that kind; `what` describes what to pass."""
    if not isinstance(given, kind):
        raise BuildError(f"{verb} ({user_line()}): give it {what}, not {shown(given)}")
    return given


def iterable(verb: str, given: T, what: str) -> T:
    """Return the argument. Raises BuildError unless it can be iterated over, item by item."""
    if type(given).__name__ == "DataFrame":
        raise BuildError(f"{verb} ({user_line()}): give it {what}, not a DataFrame, which is iterated by columns")
    try:
        iter(given)  # type: ignore[call-overload]
    except TypeError:
        raise BuildError(f"{verb} ({user_line()}): give it {what}, not {shown(given)}") from None
    return given


def name(given: str, what: str) -> str:
    """Return the name given to something. Raises BuildError unless it is a non-empty text."""
    if not isinstance(given, str) or not given:
        raise BuildError(f"{given!r} ({user_line()}) cannot be the name of {what}; give it a text that is not empty")
    return given


def pact(verb: str, given: PactOrClass) -> Pact:
    """Return the pact that `given` stands for. Raises BuildError if it is not a pact, or if its key is not a function.
    """
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

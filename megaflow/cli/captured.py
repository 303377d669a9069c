"""The functions that a program gives to its operators: the variables that they use, and the types that they declare.

1. `megaflow run` loads the program's file in each process and sends no function. A script or notebook that calls
   `megaflow.run` sends its functions pickled. So a variable that cannot be pickled matters if it is global: the
   dataflow function, which each worker calls, is the place to create such an object.
2. Only annotations declare the types of keys and states. A function without them is not judged.
"""

import contextlib
import dataclasses
import sys
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import isabstract
from types import FunctionType, MethodType
from typing import Any, Final, TypeAlias

from megaflow.errors import CannotTravel
from megaflow.job.launcher.program.function_pickler import CodePickler
from megaflow.job.launcher.program.program_modules import MAIN, is_own
from megaflow.job.launcher.program.source_bindings import globals_of
from megaflow.job.launcher.program.unsendable import attributes_of, closure_of, described, place_of
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.lowering import check_class
from megaflow.timely.communication.codec.user_types import has_own, is_named_tuple
from megaflow.timely.dataflow.error_notes import is_ours
from megaflow.timely.dataflow.graph import Node

LARGE_BYTES: Final = 1 << 20
COUNTED_BYTES_MAX: Final = 64 << 20  # larger objects are not pickled to their ends
STATE_AT: Final = {3: 2, 5: 3, 6: 4}  # number of a fold's parameters -> index of its state
FLOAT_KEYS: Final = (
    "Floats that look equal may differ in their last digits and are then two keys; NaN is refused.",
    "Use an int, a Decimal or a str as the key, such as cents, or round(x, 2) times 100 as an int.",
)

Told: TypeAlias = tuple[str, str, str, str]  # kind, what, why, fix: parts of a Fault


class TooLarge(Exception):
    """An object has more bytes than are counted."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, with the fold that it was given."""

    node: Node
    fold: Callable[..., Any] | None  # None: it is not a stateful operator, or has a fold of megaflow's

    def functions(self) -> Iterator[FunctionType]:
        """Yield the program's functions that it calls."""
        yield from user_functions(self._start())

    def holders(self) -> Iterator[Any]:
        """Yield the objects of the program's classes whose methods it calls."""
        for each in self._start():
            holder = each.__self__ if isinstance(each, MethodType) else each
            if is_of_program(type(holder).__module__):
                yield holder

    def _start(self) -> list[Any]:
        return [self.node.logic if self.node.stage is None else self.node.stage.f, self.fold]


def user_functions(start: Iterable[Any]) -> Iterator[FunctionType]:
    """Yield the program's functions among these functions, and behind those of megaflow."""
    ahead, met = [*start], set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        if isinstance(each, partial):
            ahead += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, MethodType):
            ahead.append(each.__func__)
        elif is_own_class(type(each)):
            ahead.append(type(each).__call__)
        elif isinstance(each, FunctionType) and is_ours(each.__code__.co_filename):
            ahead += [value for _, value in closure_of(each)]
        elif isinstance(each, FunctionType):
            yield each


class Counter:
    """A file that counts what is written, up to a limit."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> int:
        """Count the bytes of a piece. Raises TooLarge."""
        size = memoryview(data).nbytes
        self.bytes += size
        if self.bytes > COUNTED_BYTES_MAX:
            raise TooLarge
        return size


def pickled_bytes(value: object) -> int:
    """Return the size of an object when pickled, at most COUNTED_BYTES_MAX and a piece. Raises what pickle raises."""
    counter = Counter()
    with contextlib.suppress(TooLarge):
        CodePickler(counter).dump(value)
    return counter.bytes


def captured(operator: Operator) -> Iterator[Told]:
    """Yield the variables of an operator's functions that are large or cannot be sent."""
    for uses, value, is_global in used_values(operator):
        is_spark = is_of_spark(value)
        try:
            size = 0 if is_spark else pickled_bytes(value)
        except Exception:  # objects may raise anything
            size = -1
        if is_spark or (is_global and size < 0):
            what = f"the class {value.__name__!r}" if isinstance(value, type) else described(value)
            yield unsendable_told(f"{uses} {what}.", is_spark)
        if size > LARGE_BYTES:
            least = "more than " if size > COUNTED_BYTES_MAX else ""
            number = f"{min(size, COUNTED_BYTES_MAX) / LARGE_BYTES:.1f}"
            yield (
                "large", f"{uses} {described(value)} of {least}{number} MiB when pickled.",
                "Each process holds a copy of it, also those that join, and megaflow.run sends it to each process."
                if is_global else "Each worker holds a copy of it, also those of processes that join.",
                "Read it as a second input and keep its parts as state by key. If each process needs all of it, load "
                "it in a function with @functools.cache.",
            )  # fmt: skip


def used_values(operator: Operator) -> Iterator[tuple[str, Any, bool]]:
    """Yield (text, value, whether it is global) for what the functions of an operator use, and hold as objects."""
    for function, name, value, is_global in variables(operator.functions()):
        who = "A lambda" if function.__name__ == "<lambda>" else f"{function.__name__!r}"
        yield f"{who} uses the variable {name!r}{place_of(function, name)}, which is", value, is_global
    for holder in operator.holders():
        module = sys.modules.get(type(holder).__module__)
        is_global = module is not None and any(each is holder for each in vars(module).values())
        for name, value in attributes_of(holder):
            yield f"The {type(holder).__name__} that it calls has the attribute {name!r}, which is", value, is_global


def is_of_spark(value: object) -> bool:
    """Return whether an object is Spark's session, context or frame, or a class of the first two."""
    kind = value if isinstance(value, type) else type(value)
    is_class_of_none = isinstance(value, type) and kind.__name__ not in ("SparkSession", "SparkContext")
    return kind.__module__.partition(".")[0] == "pyspark" and kind.__name__ != "Row" and not is_class_of_none


def unsendable_told(what: str, is_spark: bool) -> Told:
    """Return the finding for an object that cannot be pickled."""
    if is_spark:
        return (
            "unsendable", what,
            "Each worker would start Spark of its own, and megaflow.run cannot send a session.",
            "Read the frame by --rows NAME=spark:FORMAT:PATH and flow.rows('NAME').",
        )  # fmt: skip
    return (
        "unsendable", what,
        "Each process has one of its own, no checkpoint includes it, and megaflow.run cannot send it from a script or "
        "notebook.",
        "Create it in the dataflow function, which each worker calls.",
    )  # fmt: skip


def variables(start: Iterable[FunctionType]) -> Iterator[tuple[FunctionType, str, Any, bool]]:
    """Yield (function, name, value, whether it is global) for the values that functions and their callees use."""
    ahead, met, seen = [*start], set[int](), set[int]()
    while ahead:
        function = ahead.pop(0)
        if id(function) in met:
            continue
        met.add(id(function))
        local = [(name, value, False) for name, value in closure_of(function)]
        known = function.__globals__
        used = (name for name in dict.fromkeys(globals_of(function.__code__)) if name in known)
        for name, value, is_global in (*local, *((name, known[name], True) for name in used)):
            behind = [each for each in user_functions([value]) if is_own_function(each)]
            if behind or is_small(value):
                ahead += behind
            elif id(value) not in seen:
                seen.add(id(value))
                yield function, name, value, is_global


def is_small(value: object) -> bool:
    """Return whether an object needs no look: a function, a class, a module, a number, a function written in C."""
    if isinstance(value, FunctionType | type):
        return not is_of_spark(value)
    return type(value).__module__ == "builtins" and not isinstance(value, abc.Collection | abc.Iterator)


def is_own_function(function: FunctionType) -> bool:
    """Return whether a function belongs to the program, not to a library."""
    return is_of_program(function.__module__ or MAIN)


def is_of_program(name: str) -> bool:
    """Return whether a module belongs to the program, not to a library."""
    module = sys.modules.get(name)
    return module is not None and is_own(module)


def is_own_class(kind: type) -> bool:
    """Return whether a class that can be called belongs to the program."""
    return is_of_program(kind.__module__) and has_own(kind, "__call__")


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function or class, none if they cannot be evaluated."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that are imported for a type checker only, among others
        return {}


def state_types(operator: Operator, makers: Iterable[Node]) -> Iterator[Told]:
    """Yield what is wrong with the declared types of a stateful operator's keys and states.

    `makers`: the stages that make its pairs.
    """
    keys: list[Any] = [key for node in makers for key in keys_made(node)]
    for fold in user_functions([operator.fold]):
        count = fold.__code__.co_argcount
        names, hints = fold.__code__.co_varnames[:count], hints_of(fold)
        if count in STATE_AT:
            keys += [hints[name] for name in names[:1] if name in hints]
            state = hints.get(names[STATE_AT[count]])
            yield from (("state-type", *told) for told in unable(state, f"The state of {fold.__name__!r}", set()))
    if any(map(has_float, keys)):
        yield "float-key", "Its keys are or contain floats, by the annotations of its functions.", *FLOAT_KEYS


def keys_made(node: Node) -> Iterator[Any]:
    """Yield the type of the keys in the pairs that a stage returns, if it is declared."""
    f = node.stage.f
    if isinstance(f, FunctionType) and is_ours(f.__code__.co_filename):  # made by key= of the stateful operator
        yield from (hints_of(value).get("return") for name, value in closure_of(f) if name == "key")
    elif callable(f):
        made = hints_of(f).get("return")
        if node.stage.kind == "flat_map":
            made = next(iter(typing.get_args(made)), None)
        if typing.get_origin(made) is tuple and typing.get_args(made):
            yield typing.get_args(made)[0]


def bare(kind: Any) -> Any:
    """Return the type behind a NewType or a type alias."""
    while (behind := getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)) is not None:
        kind = behind
    return kind


def has_float(kind: Any, around: frozenset[type] = frozenset()) -> bool:
    """Return whether a type is float, or a tuple, a union or a record with it.

    >>> has_float(tuple[str, float]), has_float(int | None), has_float(None)
    (True, False, False)

    `around`: the records whose fields are looked at; one may contain itself.
    """
    kind = bare(kind)
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        is_record = kind not in around and (dataclasses.is_dataclass(kind) or is_named_tuple(kind))
        parts = hints_of(kind).values() if is_record else ()
        return issubclass(kind, float) or any(has_float(part, around | {kind}) for part in parts)
    return any(has_float(part, around) for part in typing.get_args(kind))


def unable(kind: Any, what: str, met: set[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield why values of a type cannot travel, for each class in it that cannot."""
    kind = bare(kind)
    for part in typing.get_args(kind):
        yield from unable(part, what, met)
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type) or kind in (object, Any) or isabstract(kind) or kind in met:
        return
    met.add(kind)
    if kind.__module__ in ("typing", "collections.abc", "types"):
        return
    try:
        check_class(kind)
    except CannotTravel as error:
        why, _, fix = str(error).rpartition(": ")
        yield (
            f"{what} has the type {kind.__qualname__}, which cannot travel.", f"{why[:1].upper()}{why[1:]}.",
            f"{fix[:1].upper()}{fix[1:]}.",
        )  # fmt: skip
        return
    if dataclasses.is_dataclass(kind) or is_named_tuple(kind):
        for name, field in hints_of(kind).items():
            holder = f"The field {name!r} of {kind.__qualname__}, in {what[:1].lower()}{what[1:]},"
            yield from unable(field, holder, met)

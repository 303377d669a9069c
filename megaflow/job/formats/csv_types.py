"""Types of CSV columns: the values that the text of a field becomes, and how stores record the types.

1. `types=` of `flow.csv` decides for the columns that it names. The annotations of a NamedTuple decide for the others.
   Columns without either stay str. Any other annotation is refused by name when the dataflow is built, so no column
   stays str against its annotation.
2. Spaces around a value are ignored, except in str. Text that Python would read with a loss or against CSV's habits is
   a fault: digits grouped by "_", a Decimal that is not finite, and a time with nanoseconds.
3. An empty field is a fault, except in str and in `T | None`, where it is None.
4. A store records the types of the columns that its keys and states were made from. A program with other types is
   refused, because '7' and 7 would be two keys. A store without this record was made from str.
5. `int` and `int | None` differ only in empty fields, which `int` refuses. So a store records both as `int`, and a
   program may change one into the other. `str` and `str | None` read an empty field differently.
6. Whole columns of a block are converted at once, which takes a fifth of the time of converting row by row. If a value
   does not fit, the rows of its block are converted one by one, which finds the row and the column.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime
from decimal import Decimal
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Final, ForwardRef, NewType, Optional, TypeAlias, Union, get_args, get_origin, get_type_hints

from megaflow.errors import SourceError, UsageError
from megaflow.job.formats.record_format import SKIPS
from megaflow.quick_dataclass import dataclass

Recorded: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs (column, type) of an input, sorted. "" stands for all columns not named; without "", there are no others."""

REST: Final = ""
SHOWN: Final = 40  # characters of a value in an error
TRUTH: Final = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "0"), False
)


def truth(text: str) -> bool:
    """Return the truth value of a word. Raises KeyError."""
    return TRUTH[text.lower()]


GROUPED: Final = re.compile("_")
CONVERTERS: Final[Mapping[Any, tuple[Callable[[str], Any], re.Pattern[str] | None]]] = {
    int: (int, GROUPED),
    float: (float, GROUPED),
    bool: (truth, None),
    Decimal: (Decimal, re.compile("[_nN]")),  # NaN and Infinity
    date: (date.fromisoformat, None),
    datetime: (datetime.fromisoformat, re.compile(r"[.,]\d{6}0*[1-9]")),
}
"""Type -> function that converts a text, and the pattern of texts that it would convert with a loss."""
KNOWN: Final = ", ".join(kind.__name__ for kind in (str, *CONVERTERS))
MISFITS: Final = (ValueError, ArithmeticError, KeyError)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Type of a column."""

    name: str  # as a program writes it
    convert: Callable[[str], Any] | None = None  # None: the text itself
    refused: re.Pattern[str] | None = None
    is_optional: bool = False

    @property
    def recorded(self) -> str:
        """The type in a store."""
        return f"{self.name} | None" if self.is_optional and self.convert is None else self.name

    def column(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the values of a column. Raises one of MISFITS if it cannot do so at once."""
        convert = self.convert
        if convert is None:
            return [text or None for text in texts] if self.is_optional else texts
        if self.refused is not None and self.refused.search("\n".join(texts)):
            raise ValueError("found by its text")
        if self.is_optional and "" in texts:
            return [convert(text) if text else None for text in texts]
        return [*map(convert, texts)]

    def value(self, text: str) -> Any:
        """Return the value of a field. Raises one of MISFITS."""
        if self.convert is not None:
            text = text.strip()
        return None if self.is_optional and not text else self.column((text,))[0]


MODULE: Final = re.compile(r"\b\w+\.")
TEXT: Final = ColumnType("str")
OF_TEXT: Final[Recorded] = ((REST, TEXT.name),)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row with a field that is not of its column's type."""

    reason: str
    remedy: str


class RowTypes:
    """The types of the columns of one file."""

    def __init__(self, names: Sequence[str] | None, types: Sequence[ColumnType] | None, rest: ColumnType) -> None:
        """`types`: those of the columns, by position. None: the type of each is `rest`."""
        self._names = names
        self._types: Iterable[ColumnType] = repeat(rest) if types is None else types

    def rows(self, rows: Sequence[Sequence[str]]) -> Sequence[Sequence[Any]] | None:
        """Return rows of equal length with their values. None if a value does not fit its column."""
        try:
            columns = [kind.column(texts) for kind, texts in zip(self._types, zip(*rows))]
        except MISFITS:
            return None
        return [*zip(*columns)]

    def row(self, row: Sequence[str | None]) -> Sequence[Any] | Misfit:
        """Return a row with its values. None stands for a missing field."""
        values = list[Any]()
        for index, (kind, text) in enumerate(zip(self._types, row)):
            if text is None and (kind.is_optional or kind.convert is None):
                values.append(None)
                continue
            try:
                values.append(kind.value(text or ""))
            except MISFITS:
                return self._misfit(index, kind, text or "")
        return values

    def _misfit(self, index: int, kind: ColumnType, text: str) -> Misfit:
        name = f"field {index + 1}" if self._names is None else f"column {self._names[index]!r}"
        if not text.strip():
            return Misfit(f"its {name} is empty", f"'{kind.name} | None' allows empty fields. {SKIPS}")
        shown = f"{text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}"
        types = "str" if self._names is None else f"{{{self._names[index]!r}: str}}"
        return Misfit(f"its {name} is {shown}, not of type {kind.name}", f"types={types} keeps the text. {SKIPS}")


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """Types that a program gives to the columns of an input."""

    named: Mapping[str, ColumnType] = field(default_factory=dict)
    rest: ColumnType = TEXT
    fields: tuple[str, ...] | None = None  # the only columns; None: the files name the columns

    def of(self, names: Sequence[str] | None, where: str) -> RowTypes | None:
        """Return the types of a file with these columns. None if all are text.

        Raises SourceError if the program names a column that the file does not have.
        """
        if names is None:
            return None if self.rest == TEXT else RowTypes(None, None, self.rest)
        found = {*names}
        if lacking := [name for name in self.named if name not in found]:
            raise SourceError(
                f"flow.csv(): types names the column {lacking[0]!r}, but {where} has the columns {', '.join(names)}. "
                "Name one of them."
            )
        types = [self.named.get(name, self.rest) for name in names]
        return None if all(kind == TEXT for kind in types) else RowTypes(names, types, self.rest)

    def recorded(self) -> Recorded:
        """Return the record for a store."""
        if self.fields is not None:
            named = {name: self.named.get(name, self.rest) for name in self.fields}
        else:
            named = {**self.named, REST: self.rest}
        return tuple(sorted((name, kind.recorded) for name, kind in named.items()))


@dataclass(eq=False)
class ReadColumns:
    """Types of the columns that a dataflow reads. Only the worker that builds it writes them."""

    of: dict[str, Recorded] = field(default_factory=dict)  # input -> types; "": the only input, without a name


def column_types(kind: Any, types: Any, has_names: bool) -> ColumnTypes:
    """Return the types of an input whose rows are of class `kind`. Raises UsageError.

    >>> column_types(dict, {"id": int, "price": Decimal | None}, True).recorded()
    (('', 'str'), ('id', 'int'), ('price', 'Decimal'))
    """
    fields = None if kind in (dict, tuple) else tuple(kind._fields)
    given = dict(types) if isinstance(types, Mapping) else {}
    if given and not has_names:
        raise UsageError(
            "flow.csv(): types names columns, but without a header they have no names. Give the names in header=[…]."
        )
    known = given if fields is None else fields
    if unknown := [name for name in given if not isinstance(name, str) or name not in known]:
        among = "the columns" if fields is None else f"the fields of {kind.__qualname__}"
        raise UsageError(f"flow.csv(): types names {unknown[0]!r:.80}, which is not the name of one of {among}.")
    if types is not None and not isinstance(types, Mapping):
        return ColumnTypes({}, type_of(types, "types"), fields)
    hints = {} if fields is None else hints_of(kind, given.keys())
    named = {name: type_of(hint, f"{kind.__qualname__}.{name}") for name, hint in hints.items()}
    named |= {name: type_of(hint, f"types[{name!r}]") for name, hint in given.items()}
    return ColumnTypes(named, TEXT, fields)


def hints_of(kind: Any, given: Iterable[str]) -> dict[str, Any]:
    """Return the annotations of a NamedTuple's fields, except those that `types=` replaces. Raises UsageError."""
    try:
        try:
            hints = get_type_hints(kind)
        except NameError:  # the class of a script or notebook arrived without the imports of its module
            hints = {name: hint_of_text(hint) for name, hint in kind.__annotations__.items()}
    except Exception as error:  # an annotation that is a str may be any code
        raise UsageError(
            f"flow.csv(): The annotations of {kind.__qualname__} cannot be evaluated here: {error}. Import their names "
            "at the top level of the module, or give types=…."
        ) from error
    return {name: hint for name, hint in hints.items() if name in kind._fields and name not in given}


def hint_of_text(hint: Any) -> Any:
    """Return an annotation that `from __future__ import annotations` left as text and whose modules are unknown here.

    >>> from typing import ForwardRef
    >>> hint_of_text(ForwardRef("dt.date | None"))
    datetime.date | None
    """
    if not isinstance(hint, ForwardRef | str):
        return hint
    text = hint if isinstance(hint, str) else hint.__forward_arg__
    names = {kind.__name__: kind for kind in (str, *CONVERTERS)} | {"Optional": Optional, "Union": Union, "Any": Any}
    return eval(MODULE.sub("", text), {"__builtins__": {}}, names)


def type_of(hint: Any, where: str) -> ColumnType:
    """Return the type that an annotation names. Raises UsageError.

    >>> type_of(float | None, "Row.price").name
    'float'
    """
    named = hint
    while isinstance(named, NewType):
        named = named.__supertype__
    kinds = get_args(named) if get_origin(named) in (Union, UnionType) else (named,)
    bare = [kind for kind in kinds if kind is not NoneType]
    is_optional = len(bare) < len(kinds)
    if bare in ([str], [Any]):
        return ColumnType("str", is_optional=is_optional)
    if len(bare) != 1 or not isinstance(bare[0], type) or bare[0] not in CONVERTERS:
        shown = hint.__name__ if isinstance(hint, type) else repr(hint)
        raise UsageError(
            f"flow.csv(): {where} is {shown:.80}, which is not a type of CSV columns. Use {KNOWN}, each also with "
            "'| None'; str keeps the text."
        )
    return ColumnType(bare[0].__name__, *CONVERTERS[bare[0]], is_optional)


def differing(stored: Recorded, wanted: Recorded) -> tuple[str, str, str] | None:
    """Return the first column whose type differs, with both types. None if there is none. New columns do not differ.

    >>> differing((("", "str"),), (("id", "int"), ("note", "str")))
    ('id', 'str', 'int')
    >>> differing((("id", "int"),), (("id", "int"), ("price", "float")))
    """
    old, new = dict(stored), dict(wanted)
    for name in sorted(old | new, key=lambda name: (name == REST, name)):
        before, now = old.get(name, old.get(REST)), new.get(name, new.get(REST))
        if before is not None and now is not None and before != now:
            return name, before, now
    return None

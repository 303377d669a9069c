"""Values encoded by another version of their class, restored by the names of its fields or as plain records.

 1. The values of a NamedTuple travel with the names of its fields, like those of a dataclass. So if the class now has
    its fields in another order, it gets each value under its name. Stores of segment format 1 have no names for
    NamedTuples, so their values count by position.
 2. Several flags at once travel with the names of their members, so renumbered flags keep their meaning. Stores of
    segment format 1 have only the number.
 3. Values with added, removed or renamed fields do not fit. The decoder refuses such a value, unless its caller asked
    for old records. Then the value becomes an `OldRecord` with the fields as attributes.
 4. The encoder says how many attributes a dataclass object has beside its fields. This distinguishes a field that was
    removed from an attribute that the program has set. Segment format 1 lacks this number, so there every name that is
    not a field counts as an attribute.
"""

from collections.abc import Sequence
from enum import Flag
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import tags, user_types


class OldRecord(SimpleNamespace):
    """Record in place of an object whose class is missing or has other fields; the fields are attributes.

    The record's class has the name of the class that it stands for.

    >>> record = old_record("shop", "Account", ["name", "cents"], ["ann", 250])
    >>> record, record.cents, type(record).__name__
    (Account(name='ann', cents=250), 250, 'Account')
    """

    def __hash__(self) -> int:  # type: ignore[override]
        """Hash only the names, so that a record can stand for a key even if its values are unhashable."""
        return hash((type(self), *sorted(vars(self))))


@lru_cache(maxsize=1024)
def _record_class(module: str, qualname: str) -> type[OldRecord]:
    named = {"__module__": module, "__qualname__": qualname}
    return type(qualname.rpartition(".")[2], (OldRecord,), named)


def old_record(module: str, qualname: str, names: Sequence[str] | None, values: Sequence[Any]) -> Any:
    """Return a record with these values, or a plain tuple of them if the names are not known."""
    if names is None or len(names) != len(values):
        return tuple(values)
    return _record_class(module, qualname)(**dict(zip(names, values)))


@lru_cache(maxsize=1024)
def names_of(kind: Any) -> str:
    """Return the names of a NamedTuple's fields, in order, in the form that travels.

    >>> from megaflow.event_time.windows import Window
    >>> names_of(Window)
    'start,end'
    """
    return ",".join(map(str, kind._fields))


def in_order(kind: Any, names: str | None, columns: Sequence[Any]) -> Sequence[Any]:
    """Return the columns, given in the order of `names`, in the order of a NamedTuple's fields.

    If `names` is None, they already have that order. Raises ProtocolError if the class has other fields.
    """
    known, given = names_of(kind).split(","), None if names is None else names.split(",")
    if len(columns) != len(kind._fields) or (given is not None and sorted(given) != sorted(known)):
        shown = f"{len(columns)} fields" if given is None else ", ".join(given)
        raise ProtocolError(
            f"a value of {user_types.describe(kind)} has other fields than its class in this process: it has {shown}; "
            f"the class has {', '.join(known)}"
        )
    return columns if given is None else [columns[given.index(name)] for name in known]


def beside_fields(tag: int, storage: user_types.Storage, names: Sequence[str]) -> tuple[int, ...]:
    """Return (number of names that are not fields,) for a dataclass; () for other classes, which declare no fields."""
    return (len(names) - len(storage.fields),) if tag == tags.DATACLASS else ()


@lru_cache(maxsize=1024)
def flag_names(value: Flag) -> str:
    """Return the names of the members that a flag contains, then the number of the rest, in the form that travels."""
    number = value.value
    single = {
        name: member.value
        for name, member in type(value).__members__.items()
        if member.value > 0 and member.value & (member.value - 1) == 0 and member.value & number
    }
    rest = number & ~sum({*single.values()})
    return ",".join([*single, str(rest)] if rest else single)


@lru_cache(maxsize=1024)
def flag_number(kind: Any, names: str) -> int:
    """Return the number that `flag_names` stand for in a class. Raises ProtocolError if it lacks one of the members."""
    number = 0
    for name in names.split(",") if names else ():
        member = kind.__members__.get(name)
        if member is None and not name.lstrip("-").isdecimal():
            raise ProtocolError(f"{user_types.describe(kind)} has no member {name!r:.50} in this process")
        number |= int(name) if member is None else member.value
    return number

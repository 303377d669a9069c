"""Values of numpy and pandas, taken apart and made again, once the program has imported these libraries.

Nothing here imports them: a process that has not done so refuses such a value by name. Another thread may just be
importing one, which is not whole until then: no value of the program's is one of its.
 1. An array is the text of its dtype, its shape and its bytes; a scalar is one of no dimension. The decoder takes a
    dtype only in the form that numpy itself writes for numbers, times and texts: objects and records are refused. The
    bytes must be exactly as many as the shape says, before anything is made: a shape alone allocates nothing.
 2. Timestamps and Timedeltas are an integer and its unit. A zone is a `tzinfo`, or a name that pytz knows: a text would
    have pandas look for it in files.
"""

import math
import re
import sys
from collections.abc import Callable
from datetime import tzinfo
from typing import Any, Final

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.tags import Node

_DTYPE: Final = re.compile(r"[<>|][biufcmMSU][1-9][0-9]{0,8}(\[[0-9]{0,9}[A-Za-zμ]{1,2}\])?")
_DIMENSIONS_MAX: Final = 64  # numpy's own limit
_USED: Final = {"numpy": ("ndarray", "str_", "bytes_", "generic", "dtype"), "pandas": ("Timestamp", "NaT", "Timedelta")}
_UNITS: Final = ("s", "ms", "us", "ns")


def lowering(kind: type, lower: Callable[[Any, int], Node]) -> Callable[[Any, int], Node] | None:
    """Return how values of a class are lowered if it is one of numpy's or pandas'; None if it is not.

    `lower` lowers a part.
    """
    numpy, pandas = map(_whole, _USED)
    if numpy is not None:
        if kind is numpy.ndarray:
            return lambda value, depth: [tags.ARRAY, _text_of(value.dtype), list(value.shape), value.tobytes()]
        if kind in (numpy.str_, numpy.bytes_):  # which an array would strip of NULs at their end
            base = str.__str__ if kind is numpy.str_ else bytes  # not str(), which strips as well
            return lambda value, depth: [tags.NUMPY_TEXT, base(value)]
        if issubclass(kind, numpy.generic) and numpy.dtype(kind).type is kind:
            return lambda value, depth: [tags.NUMPY_SCALAR, _text_of(value.dtype), value.tobytes()]
    if pandas is not None:
        if kind in (pandas.Timestamp, type(pandas.NaT)):
            return lambda value, depth: _lower_timestamp(value, depth, lower)
        if kind is pandas.Timedelta:
            return lambda value, depth: [tags.PANDAS_TIMEDELTA, int(value.asm8.view("i8")), value.unit]
    return None


def _whole(library: str) -> Any:
    """Return a library that has been imported, with all that is used of it here; None if it has not."""
    module = sys.modules.get(library)
    return module if module is not None and all(hasattr(module, name) for name in _USED[library]) else None


def _text_of(dtype: Any) -> str:
    text: str = dtype.str
    if _DTYPE.fullmatch(text) is None:
        raise CannotTravel(
            f"a numpy value of dtype {dtype} cannot travel between processes: only numbers, booleans, times, str and "
            "bytes do; use a list, or columns"
        )
    return text


def _lower_timestamp(value: Any, depth: int, lower: Callable[[Any, int], Node]) -> Node:
    if value is sys.modules["pandas"].NaT:
        return [tags.TIMESTAMP, None]
    zone, pytz = value.tzinfo, sys.modules.get("pytz")
    by_name = pytz is not None and isinstance(zone, pytz.tzinfo.BaseTzInfo)
    parts = (zone.zone, None) if by_name else (None, lower(zone, depth + 1))
    return [tags.TIMESTAMP, int(value.asm8.view("i8")), value.unit, value.fold, *parts]


def imported(name: str) -> Any:
    """Return a library that the program has imported; raises ProtocolError if it has not."""
    module = sys.modules.get(name)
    if module is None:
        raise ProtocolError(
            f"a value of {name} arrived, but this process has not imported {name}; every process must import it"
        )
    return module


def restore_array(text: object, shape: Any, content: bytes) -> Any:
    """Return an array of its own memory; raises ProtocolError or ValueError if the parts do not fit."""
    numpy = imported("numpy")
    if type(text) is not str or _DTYPE.fullmatch(text) is None:
        raise ProtocolError(f"an array of dtype {text!r:.50} arrived")
    dtype = numpy.dtype(text)
    if type(shape) is not list or len(shape) > _DIMENSIONS_MAX or any(type(n) is not int or n < 0 for n in shape):
        raise ProtocolError(f"an array of shape {shape!r:.50} arrived")
    if dtype.str != text or dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content):
        raise ProtocolError(f"an array of dtype {text} and shape {shape!r:.50} arrived in {len(content)} bytes")
    if dtype.kind == "b" and content.translate(None, b"\0\1"):
        raise ProtocolError("an array of booleans arrived with bytes other than 0 and 1")
    if dtype.kind == "U":
        content.decode("utf-32-be" if text[0] == ">" else "utf-32-le", "surrogatepass")
    return numpy.ndarray(tuple(shape), dtype, content).copy()


def restore_scalar(text: object, content: bytes) -> Any:
    """Return a numpy scalar."""
    return restore_array(text, [], content)[()]


def restore_text(content: object) -> Any:
    """Return a str or bytes of numpy's."""
    numpy = imported("numpy")
    if type(content) not in (str, bytes):
        raise ProtocolError("a numpy text arrived without its content")
    return numpy.str_(content) if type(content) is str else numpy.bytes_(content)


def restore_timestamp(count: object, unit: object, fold: object, name: object, zone: object) -> Any:
    """Return a Timestamp of so many units since 1970, or NaT; `zone` is restored already, `name` is one of pytz."""
    pandas = imported("pandas")
    if count is None:
        return pandas.NaT
    if type(count) is not int or unit not in _UNITS or type(fold) is not int:
        raise ProtocolError(f"a Timestamp of {count!r:.50} {unit!r:.50} arrived")
    result = pandas.Timestamp(imported("numpy").datetime64(count, unit))
    if name is not None:
        zone = imported("pytz").timezone(name if type(name) is str else "")
    if zone is None:
        return result.replace(fold=fold)
    if not issubclass(type(zone), tzinfo):
        raise ProtocolError(f"a Timestamp arrived with the zone {zone!r:.50}")
    return result.tz_localize("UTC").tz_convert(zone)


def restore_timedelta(count: object, unit: object) -> Any:
    """Return a Timedelta of so many units."""
    pandas = imported("pandas")
    if type(count) is not int or unit not in _UNITS:
        raise ProtocolError(f"a Timedelta of {count!r:.50} {unit!r:.50} arrived")
    return pandas.Timedelta(imported("numpy").timedelta64(count, unit))

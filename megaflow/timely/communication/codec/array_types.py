"""Values of numpy, pandas and pytz, taken apart and made again, once the program has imported these libraries.

This module imports none of them: a process without the library refuses such a value by name. The worker processes of
`megaflow.run` import at their start those of LIBRARIES that the program has imported. A library that another thread is
importing right now does not count yet (`_whole`): no value of the program can be one of its values.
 1. An array travels as the text of its dtype, its shape and its bytes; a scalar is an array of no dimension. The
    decoder accepts a dtype only in the form that numpy itself writes for numbers, times and texts, so objects and
    records are refused. The number of bytes must match the shape before an array is made: a shape alone allocates
    nothing.
 2. Timestamps and Timedeltas travel as an integer and its unit. A zone is a `tzinfo`, or a name that pytz knows. Any
    other text is refused, because pandas would look it up in files.
 3. A pytz zone in a datetime travels as its name, offsets and abbreviation, as pytz itself pickles it, because pytz has
    an object for each offset of a zone.
 4. A Period travels as an integer and the text of its frequency. The decoder accepts only letters, digits and hyphens.
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
_FREQUENCY: Final = re.compile(r"[0-9]{0,9}[A-Za-z]{1,8}(-[A-Z]{3})?")
_USED: Final = {
    "numpy": ("ndarray", "str_", "bytes_", "generic", "dtype"),
    "pandas": ("Timestamp", "NaT", "Timedelta", "Period", "NA"),
    "pytz": ("FixedOffset", "tzinfo", "utc"),
}
LIBRARIES: Final = tuple(_USED)
"""Libraries that workers import if the launcher's program has imported them: all whose values travel."""
_UNITS: Final = ("s", "ms", "us", "ns")
_REMEDIES: Final = {
    ("pandas", "Pandas"): "use itertuples(name=None) or to_dict('records')",
    ("pandas", "DataFrame"): "use to_dict('records')",
    ("pandas", "Series"): "use tolist() or to_dict()",
    ("pandas", "Interval"): "use its text, as in column.astype(str), or a tuple of its bounds",
    ("polars", "DataFrame"): "use to_dicts()",
    ("polars", "Series"): "use to_list()",
    ("builtins", "MonthDayNano"): "use a number of days or seconds",  # of pyarrow
    ("pyarrow", ""): "use to_pylist() or as_py()",
}
"""Library and name of a class -> what to send instead of its values; "" means all other classes of the library."""


def lowering(kind: type, lower: Callable[[Any, int], Node]) -> Callable[[Any, int], Node] | None:
    """Return how to lower values of a class of numpy, pandas or pytz; None for any other class.

    `lower` lowers a part of a value.
    """
    numpy, pandas, pytz = map(_whole, _USED)
    if numpy is not None:
        if kind is numpy.ndarray:
            return lambda value, depth: [tags.ARRAY, _text_of(value.dtype), list(value.shape), value.tobytes()]
        if kind in (numpy.str_, numpy.bytes_):  # an array would strip the NULs at their end
            base = str.__str__ if kind is numpy.str_ else bytes  # not str(), which strips as well
            return lambda value, depth: [tags.NUMPY_TEXT, base(value)]
        if issubclass(kind, numpy.generic) and numpy.dtype(kind).type is kind:
            return lambda value, depth: [tags.NUMPY_SCALAR, _text_of(value.dtype), value.tobytes()]
    if pandas is not None:
        if kind in (pandas.Timestamp, type(pandas.NaT)):
            return lambda value, depth: _lower_timestamp(value, depth, lower)
        if kind is pandas.Timedelta:
            return lambda value, depth: [tags.PANDAS_TIMEDELTA, int(value.asm8.view("i8")), value.unit]
        if kind is pandas.Period:
            return lambda value, depth: [tags.PERIOD, int(value.ordinal), value.freqstr]
        if kind is type(pandas.NA):
            return lambda value, depth: [tags.PANDAS_NA]
    if pytz is not None and (issubclass(kind, pytz.tzinfo.BaseTzInfo) or kind is type(pytz.FixedOffset(1))):
        return lambda value, depth: [tags.PYTZ_ZONE, *value.__reduce__()[1]]
    return None


def remedy(kind: type) -> str:
    """Return what to send instead of values of a library's class that cannot travel; "" if it is not known."""
    library = kind.__module__.partition(".")[0]
    return _REMEDIES.get((library, kind.__name__)) or _REMEDIES.get((library, ""), "")


def _whole(library: str) -> Any:
    """Return an imported library if it has all names that this module uses; otherwise None."""
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
    """Return a library that the program has imported. Raises ProtocolError if it has not."""
    module = sys.modules.get(name)
    if module is None:
        raise ProtocolError(
            f"a value of {name} arrived, but this process has not imported {name}: import {name} at the top level of "
            "the program"
        )
    return module


def restore_array(text: object, shape: Any, content: bytes) -> Any:
    """Return an array with memory of its own. Raises ProtocolError or ValueError if the parts do not fit."""
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


def restore_text(content: object) -> Any:
    """Return a numpy str or bytes."""
    numpy = imported("numpy")
    if type(content) not in (str, bytes):
        raise ProtocolError("a numpy text arrived without its content")
    return numpy.str_(content) if type(content) is str else numpy.bytes_(content)


def restore_timestamp(count: object, unit: object, fold: object, name: object, zone: object) -> Any:
    """Return the Timestamp `count` units after 1970, or NaT. `zone` is restored already; `name` names a pytz zone."""
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
    """Return a Timedelta of `count` units."""
    pandas = imported("pandas")
    if type(count) is not int or unit not in _UNITS:
        raise ProtocolError(f"a Timedelta of {count!r:.50} {unit!r:.50} arrived")
    return pandas.Timedelta(imported("numpy").timedelta64(count, unit))


def restore_period(ordinal: object, frequency: object) -> Any:
    """Return the Period with this number and frequency."""
    pandas = imported("pandas")
    if type(ordinal) is not int or type(frequency) is not str or _FREQUENCY.fullmatch(frequency) is None:
        raise ProtocolError(f"a Period of {ordinal!r:.50} {frequency!r:.50} arrived")
    return pandas.Period(ordinal=ordinal, freq=frequency)


def restore_pytz_zone(parts: tuple[object, ...]) -> Any:
    """Return a pytz zone: UTC, a fixed offset in minutes, or a zone by its name, perhaps with one of its offsets."""
    pytz = imported("pytz")
    kinds = tuple(map(type, parts))
    if kinds not in ((), (int,), (str,), (str, int, int, str)):
        raise ProtocolError(f"a zone of pytz arrived as {parts!r:.50}")
    if not parts:
        return pytz.utc
    return pytz.FixedOffset(parts[0]) if kinds == (int,) else pytz.tzinfo.unpickler(*parts)

"""The tree between a value and its bytes: the tags of its nodes, and the limits that hold in both directions.

None, bool, int, float, str and bytes stand for themselves, because msgpack carries them exactly. Every other value is a
node, a list that begins with a tag. The tags are part of the wire format.
"""

import re
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeAlias

Node: TypeAlias = Any  # a value that msgpack carries: a scalar, or [tag, ...]

DEPTH_MAX: Final = 100  # keeps both directions within Python's recursion limit and within msgpack's own stack
ARRAY_LENGTH_MAX: Final = 4096  # 32 KiB of pointers: hostile nesting, at most 1024 deep, claims 32 MiB at worst
NESTED_COLUMNS_MAX: Final = 4  # each level of columns makes tuples, or dicts, that cost the sender no byte

SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
FACTORIES: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
}  # name -> a factory that a defaultdict may have
PATHS: Final[dict[str, type[PurePath]]] = {
    kind.__name__: kind for kind in (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
}
RECORD_MODULES: Final = frozenset(
    (
        "megaflow.connect.database_sink",
        "megaflow.connect.sink",
        "megaflow.connect.source_protocol",
        "megaflow.connect.table_rows",
        "megaflow.event_time.windows",
        "megaflow.job.formats.text_lines",
        "megaflow.megaphone.base.routing",
        "megaflow.timely.dataflow.capture.event_format",
        "megaflow.timely.dataflow.operators.branching",
        "megaflow.timely.order",
    )
)  # modules of megaflow whose classes may be in records; the decoder imports them when such a record arrives
PATTERN_LENGTH_MAX: Final = 1000  # characters
PATTERN_DASHES_MAX: Final = 32  # each may be a range of all characters: 20 ms to compile if their case is ignored
PATTERN_FLAGS: Final = re.A | re.I | re.L | re.M | re.S | re.U | re.X  # not DEBUG, which prints


def is_modest(pattern: str | bytes, flags: int) -> bool:
    """Return whether a regular expression may travel: the receiver compiles it, which must take less than a second."""
    dashes = pattern.count("-") if isinstance(pattern, str) else pattern.count(b"-")
    return len(pattern) <= PATTERN_LENGTH_MAX and dashes <= PATTERN_DASHES_MAX and not flags & ~PATTERN_FLAGS


# Lists: [tag, content]. Only the tags of lists are at most COLUMNS, or in MORE_LISTS.
LIST: Final = 0  # [value or node, ...]
PARTS: Final = 1  # [list node, ...], one after another
STRS: Final = 2  # UTF-8, separated by NUL
INT32S: Final = 3  # little-endian
INT64S: Final = 4
FLOATS: Final = 5
COLUMNS: Final = 6  # tuples of one length: [list node for each position, ...]

TUPLE: Final = 7
BIG_INT: Final = 8
DICT: Final = 9
SET: Final = 10
FROZENSET: Final = 11
BYTEARRAY: Final = 12
COMPLEX: Final = 13
DECIMAL: Final = 14
UUID: Final = 15
DATE: Final = 16
TIME: Final = 17
DATETIME: Final = 18
TIMEDELTA: Final = 19
TIMEZONE: Final = 20
ZONE_INFO: Final = 21
COUNTER: Final = 22
DEFAULTDICT: Final = 23
DEQUE: Final = 24
ENUM: Final = 25
FLAG: Final = 26
NAMED_TUPLE: Final = 27
DATACLASS: Final = 28
REGISTERED: Final = 29
OBJECT: Final = 30
ORDERED_DICT: Final = 31
PATH: Final = 32
PATTERN: Final = 33
RANGE: Final = 34
ARRAY: Final = 35
NUMPY_SCALAR: Final = 36
NUMPY_TEXT: Final = 37
TIMESTAMP: Final = 38
PANDAS_TIMEDELTA: Final = 39

PERIOD: Final = 44
PANDAS_NA: Final = 45
PYTZ_ZONE: Final = 46

# Only with `shared` in `encode` and `decode`, where an object with several references stays one.
ANCHOR: Final = 40  # [number, node]: the first reference to an object
SHARED: Final = 41  # [number]: a further reference

# More lists. Elements with further references are listed at the end: the place and the number of each, in turn.
ROWS: Final = 42  # [shape, [list node for each column, ...]] and perhaps [place, number, ...]
LISTS: Final = 43  # [list node of lengths, list node of all elements] and perhaps [place, number, ...]
PLAIN_COLUMN: Final = 47  # [tag of a single value, list node of plain values and None, node of a zone or None]
MORE_LISTS: Final = frozenset((ROWS, LISTS, PLAIN_COLUMN))
# A shape: [LIST], [DICT, keys], [NAMED_TUPLE, module, name, names of fields], [OBJECT, module, name, attributes],
# [DATACLASS, module, name, attributes, number of attributes that are not fields].

LETTERS: Final = {INT32S: ("i", 4), INT64S: ("q", 8), FLOATS: ("d", 8)}  # tag -> letter of struct, bytes

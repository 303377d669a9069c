"""The tree between a value and its bytes: the tags of its nodes and the limits that both directions keep.

None, bool, int, float, str and bytes stand for themselves, because msgpack carries them exactly; everything else is a
node, a list that begins with a tag. The tags are part of the wire format.
"""

from typing import Any, Final, TypeAlias

Node: TypeAlias = Any  # what msgpack carries: a scalar, or [tag, ...]

DEPTH_MAX: Final = 100  # keeps both directions within Python's recursion limit and within msgpack's own stack
ARRAY_LENGTH_MAX: Final = 4096  # 32 KiB of pointers: hostile nesting, at most 1024 deep, claims 32 MiB at worst
NESTED_COLUMNS_MAX: Final = 3  # each level of columns makes tuples that cost the sender no byte

SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
FACTORIES: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
}  # name -> what a defaultdict may make

# Lists: [tag, content], told from the other nodes by a tag of at most COLUMNS.
LIST: Final = 0  # [value or node, ...]
PARTS: Final = 1  # [list node, ...], one after the other
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

LETTERS: Final = {INT32S: ("i", 4), INT64S: ("q", 8), FLOATS: ("d", 8)}  # tag -> letter of struct, bytes

"""Names of the classes in a value. Callers ask before it travels, and before or after it is restored."""

import sys
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import tags, user_types
from megaflow.timely.communication.codec.decode import FITS, class_of, unpack
from megaflow.timely.communication.codec.tags import Node

ClassName: TypeAlias = tuple[int, str, str]  # tag, module or registered name, qualified name or ""
Shape: TypeAlias = tuple[int, str, str, str]  # the same, and the fields

_LIBRARIES: Final = {
    **dict.fromkeys((tags.ARRAY, tags.NUMPY_SCALAR, tags.NUMPY_TEXT), "numpy"),
    **dict.fromkeys((tags.TIMESTAMP, tags.PANDAS_TIMEDELTA, tags.PERIOD, tags.PANDAS_NA), "pandas"),
    tags.PYTZ_ZONE: "pytz",
}  # tag -> the library that must have been imported


def classes_in(tree: Node, met: set[ClassName]) -> None:
    """Add the classes of the objects in a tree that `lower` has made. Cost: linear in the tree."""
    met.update(head[:3] for head in _heads(tree))


def shapes_in(encoded: bytes) -> set[Shape]:
    """Return the classes in an encoded value, each with the fields or the member that its objects have there.

    Raises the first error of any type if the bytes hold no value. Cost: linear in the value; for a column, in its
    fields.
    """
    return set(_heads(unpack(encoded)))


def are_texts(encoded: bytes) -> bool:
    """Return whether an encoded list has travelled as one run of texts. Cost: no text is made."""
    node = unpack(encoded)
    return type(node) is list and node[0] == tags.STRS


def _heads(tree: Node) -> Iterator[Shape]:
    """Yield the class and the fields of each object, or of all objects in columns, before their values."""
    nodes = [tree] if type(tree) is list else []
    while nodes:
        node = nodes.pop()
        tag = node[0]
        if tag in FITS:
            yield tag, node[1], node[2], _fields(node)
        elif tag == tags.REGISTERED:
            yield tag, node[1], "", ""
        elif tag in _LIBRARIES:
            yield tag, _LIBRARIES[tag], "", ""
            continue  # its parts are no nodes, except for a zone, whose class is Python's
        if tag == tags.ROWS:
            if node[1][0] in FITS:
                yield *node[1][:3], repr(node[1][3:] or len(node[2]))
            content = node[2]
        elif tag == tags.LISTS:
            content = node[1:3]
        elif tag in (tags.LIST, tags.PARTS, tags.COLUMNS):
            content = node[1]
        else:
            content = node[4 if tag in (tags.DATACLASS, tags.OBJECT) else 1 :]  # the parts before are names
        nodes += [part for part in content if type(part) is list]


def _fields(node: Node) -> str:
    """Return the fields of an object, or the names of members, as text."""
    if node[0] in (tags.DATACLASS, tags.OBJECT):
        return repr([node[3], *node[5:]])
    if node[0] == tags.ENUM:
        return repr(node[3:])
    items = node[3]  # for a NamedTuple without names, only the number of values, if it is easy to find
    return repr(node[4:] or (len(items[1]) if type(items) is list and items[0] == tags.LIST else None))


def check_known(names: Iterable[ClassName]) -> None:
    """Raise ProtocolError unless this process can restore objects of these classes."""
    for tag, name, qualname in names:
        if not _is_known(tag, name, qualname):
            what = f"registered no {name}" if tag == tags.REGISTERED else f"imported no {name} {qualname}".rstrip()
            raise ProtocolError(f"this process has {what}, as the state needs: do so at the top level of the program")


def unknown_in(encoded: bytes) -> list[str]:
    """Return the sorted names of the classes in an encoded value that this process cannot restore.

    Raises the first error of any type if the bytes hold no value.
    """
    met: set[ClassName] = set()
    classes_in(unpack(encoded), met)
    return [".".join(filter(None, each[1:])) for each in sorted(met) if not _is_known(*each)]


def _is_known(tag: int, name: str, qualname: str) -> bool:
    if tag == tags.REGISTERED:
        return name in user_types.decoders
    if tag in _LIBRARIES:
        return name in sys.modules
    try:
        class_of(tag, name, qualname)
    except ProtocolError:
        return False
    return True

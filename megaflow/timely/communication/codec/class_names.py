"""Which classes there are in a value, by their names: asked before it travels, or where it cannot be restored."""

import sys
from collections.abc import Iterable
from typing import Final, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import tags, user_types
from megaflow.timely.communication.codec.decode import FITS, class_of, unpack
from megaflow.timely.communication.codec.tags import Node

ClassName: TypeAlias = tuple[int, str, str]  # tag, module or registered name, qualified name or nothing

_LIBRARIES: Final = {
    **dict.fromkeys((tags.ARRAY, tags.NUMPY_SCALAR, tags.NUMPY_TEXT), "numpy"),
    **dict.fromkeys((tags.TIMESTAMP, tags.PANDAS_TIMEDELTA), "pandas"),
}  # tag -> the library that must have been imported


def classes_in(tree: Node, met: set[ClassName]) -> None:
    """Add the classes whose objects are in a tree, one that `lower` has made. Cost: linear in it."""
    nodes = [tree] if type(tree) is list else []
    while nodes:
        node = nodes.pop()
        tag = node[0]
        if tag in FITS:
            met.add((tag, node[1], node[2]))
        elif tag == tags.REGISTERED:
            met.add((tag, node[1], ""))
        elif tag in _LIBRARIES:
            met.add((tag, _LIBRARIES[tag], ""))
            continue  # a shape is no node; what zone there is, Python knows
        if tag == tags.ROWS:
            if node[1][0] in FITS:
                met.add(tuple(node[1][:3]))
            content = node[2]
        elif tag == tags.LISTS:
            content = node[1:3]
        elif tag in (tags.LIST, tags.PARTS, tags.COLUMNS):
            content = node[1]
        else:
            content = node[4 if tag in (tags.DATACLASS, tags.OBJECT) else 1 :]  # what is before are names
        nodes += [part for part in content if type(part) is list]


def check_known(names: Iterable[ClassName]) -> None:
    """Raise ProtocolError unless this process can restore objects of these classes."""
    for tag, name, qualname in names:
        if tag == tags.REGISTERED:
            known = name in user_types.decoders
        elif tag in _LIBRARIES:
            known = name in sys.modules
        else:
            try:
                known = class_of(tag, name, qualname) is not None
            except ProtocolError:
                known = False
        if not known:
            what = f"registered no {name}" if tag == tags.REGISTERED else f"imported no {name} {qualname}".rstrip()
            raise ProtocolError(f"this process has {what}, as the state needs: do so at the top level of the program")


def unknown_in(encoded: bytes) -> list[str]:
    """Return the names of the classes in a value, as it is encoded, that this process cannot restore; sorted.

    Raises whatever fails first for bytes that hold no value.
    """
    met: set[ClassName] = set()
    classes_in(unpack(encoded), met)
    names = []
    for each in sorted(met):
        try:
            check_known([each])
        except ProtocolError:
            names.append(".".join(filter(None, each[1:])))
    return names

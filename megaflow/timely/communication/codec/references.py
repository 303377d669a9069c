"""Objects that one value refers to several times: those met while it is lowered, and their numbers.

1. The first reference to an object becomes its node. Each further reference becomes a number, and then the node becomes
   an ANCHOR with the same number. Objects that travel as columns have no nodes of their own. The node of all of
   them (ROWS, LISTS) says which object has which number.
2. The decoder numbers an object once it is complete. Its contents come first, and rows come after all their columns. So
   no code of the program that hashes a key meets an incomplete object. A value that contains itself is refused. Rows
   that refer to one another cannot travel as columns: `Interlinked`.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.tags import Node


class Interlinked(Exception):
    """Rows refer to one another, or too many have further references: lower the value again without columns."""


class Met:
    """The objects met so far in one value."""

    def __init__(self, rows: bool = True) -> None:
        """If `rows`, objects may travel as columns."""
        self.rows: Final = rows
        self.nodes: dict[int, tuple[object, list[Node]] | Rows] = {}  # id -> (object, to keep the id valid; its node)
        self.numbers = count()  # each is given to one object

    def reference_to(self, value: object) -> Node:
        """Return the node for a further reference to an object in `nodes`."""
        found = self.nodes[id(value)]
        if isinstance(found, Rows):
            return [tags.SHARED, found.number_of(value)]
        _, first = found
        if first[0] != tags.ANCHOR:
            first[:] = [tags.ANCHOR, next(self.numbers), first[:]]
        return [tags.SHARED, first[1]]


class Rows:
    """A group of objects that travel as columns."""

    __slots__ = ("_anchors", "_complete", "_met", "_numbers", "_objects")

    def __init__(self, objects: Sequence[object], met: Met | None) -> None:
        """`met` is None if an object with several references is copied."""
        self._objects = objects  # keeps their ids valid
        self._met = met
        self._complete = False
        self._numbers: dict[int, list[int]] = {}  # id -> place, and number if it has one; filled on the first request
        self._anchors: list[int] = []  # place and number of each object that has a number

    def begin(self) -> bool:
        """Note that the objects are met; return False and note nothing if one occurs twice or was met before."""
        if self._met is None:
            return True
        ids = dict.fromkeys(map(id, self._objects), self)
        if not self._met.rows or len(ids) != len(self._objects) or not self._met.nodes.keys().isdisjoint(ids):
            return False
        self._met.nodes.update(ids)
        return True

    def forget(self) -> None:
        """Undo `begin`."""
        if self._met is not None:
            for each in self._objects:
                del self._met.nodes[id(each)]

    def complete(self, node: list[Node]) -> list[Node]:
        """Return the node of all of them, once its columns are lowered."""
        self._complete = True
        return node if self._met is None else [*node, self._anchors]

    def number_of(self, value: object) -> int:
        """Return the number of one of the objects. Cost: the first call is linear in their count."""
        assert self._met is not None, "who copies has no numbers"
        if not self._complete or len(self._anchors) + 2 > tags.ARRAY_LENGTH_MAX:
            raise Interlinked
        if not self._numbers:
            self._numbers = {id(each): [place] for place, each in enumerate(self._objects)}
        place, *number = self._numbers[id(value)]
        if not number:
            number = [next(self._met.numbers)]
            self._numbers[id(value)] += number
            self._anchors += place, *number
        return number[0]

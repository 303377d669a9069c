"""What one value refers to several times: the objects that were met while it is lowered, and their numbers.

1. The first reference to an object becomes its node, each further one a number, and the node an ANCHOR with it. Objects
   that travel as columns have no nodes: the node of all of them (ROWS, LISTS) says which of them has which number.
2. The decoder numbers an object once it is whole: what is in it comes first, and rows come after all their columns. So
   no code of the program, which hashes a key, meets half an object. A value that contains itself is refused, and rows
   that refer to one another cannot travel as columns: `Interlinked`.
"""

from collections.abc import Sequence
from typing import Final

from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.tags import Node


class Interlinked(Exception):
    """Rows refer to one another, or too many are referred to again: lower the value once more, without any."""


class Met:
    """The objects that have been met in one value."""

    def __init__(self, rows: bool = True) -> None:
        """`rows`: whether objects may travel as columns."""
        self.rows: Final = rows
        self.nodes: dict[int, tuple[object, list[Node]] | Rows] = {}  # id -> the object, which keeps its id, its node
        self._count = 0  # of numbers

    def reference_to(self, value: object) -> Node:
        """Return the node of a further reference to an object that is among `nodes`."""
        found = self.nodes[id(value)]
        if isinstance(found, Rows):
            return [tags.SHARED, found.number_of(value)]
        _, first = found
        if first[0] != tags.ANCHOR:
            first[:] = [tags.ANCHOR, self.next_number(), first[:]]
        return [tags.SHARED, first[1]]

    def next_number(self) -> int:
        """Return a number that no object has."""
        self._count += 1
        return self._count - 1


class Rows:
    """Objects that travel as columns."""

    __slots__ = ("_anchors", "_complete", "_met", "_numbers", "_objects")

    def __init__(self, objects: Sequence[object], met: Met | None) -> None:
        """`met`: None if what is referred to twice is copied."""
        self._objects = objects  # which keeps their ids
        self._met = met
        self._complete = False
        self._numbers: dict[int, list[int]] = {}  # id -> place, and number if it has one; made when one is asked for
        self._anchors: list[int] = []  # place and number of each that has one

    def begin(self) -> bool:
        """Note that the objects are met; no, and nothing is noted, if one is met twice or was before."""
        if self._met is None:
            return True
        ids = dict.fromkeys(map(id, self._objects), self)
        if not self._met.rows or len(ids) != len(self._objects) or not self._met.nodes.keys().isdisjoint(ids):
            return False
        self._met.nodes.update(ids)
        return True

    def forget(self) -> None:
        """Take back `begin`."""
        if self._met is not None:
            for each in self._objects:
                del self._met.nodes[id(each)]

    def complete(self, node: list[Node]) -> list[Node]:
        """Return the node of all of them, whose columns are lowered."""
        self._complete = True
        return node if self._met is None else [*node, self._anchors]

    def number_of(self, value: object) -> int:
        """Return the number of one of the objects. Cost: of the first call, their count."""
        assert self._met is not None, "who copies has no numbers"
        if not self._complete or len(self._anchors) + 2 > tags.ARRAY_LENGTH_MAX:
            raise Interlinked
        if not self._numbers:
            self._numbers = {id(each): [place] for place, each in enumerate(self._objects)}
        place, *number = self._numbers[id(value)]
        if not number:
            number = [self._met.next_number()]
            self._numbers[id(value)] += number
            self._anchors += place, *number
        return number[0]

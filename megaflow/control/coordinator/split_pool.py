"""The splits that nobody was given yet, and whose turn it is to be given which.

They are dealt to the readers in thought, so that all would end together: a *part* each. Who asks gets what is next in
its part, in the order of numbers. When that is used up, for it was faster than thought, what is left is dealt anew.
Whoever has nothing at all gets what is there.

The files of an input that is read in an order are not dealt: whoever asks gets the next one. Several such inputs, and
all the others, come in turn, so that none has to wait for the end of another.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace

from megaflow.control.messages import Split
from megaflow.timely.membership import WorkerId


def size_of(split: Split) -> int:
    """Return how much there is to read, in bytes."""
    return split.end - split.start


def place_of(split: Split) -> tuple[str, int]:
    """Return where a split stands among those of an input that is read in the order of names."""
    return split.path, split.start


class SplitPool:
    """What is to be given to readers. One writer: `LinesToRead`.

    >>> pool = SplitPool(Split(number, "a", 0, 10) for number in range(3))
    >>> taken = pool.take(7, {4: 0, 7: 0}), pool.take(7, {4: 0, 7: 10}), pool.take(4, {4: 0, 7: 10})
    >>> [split and split.number for split in taken]
    [1, None, 0]
    """

    def __init__(self, splits: Iterable[Split] = (), ordered: Collection[str] = ()) -> None:
        """`ordered`: inputs whose files are read in the order of their names."""
        self._splits: dict[int, Split] = {}  # those that are dealt
        self._parts: dict[WorkerId, list[Split]] = {}  # worker -> its part, next one last
        self._lines: dict[str, list[Split]] = {input: [] for input in ordered}  # the others, next one first
        self._turns: deque[str | None] = deque([*sorted(ordered), None])  # None: those that are dealt
        self.put(splits)

    def __len__(self) -> int:
        return len(self._splits) + sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Split]:
        """Go over all of them; those that are read in an order come in it."""
        yield from self._splits.values()
        for line in self._lines.values():
            yield from line

    @property
    def splits(self) -> tuple[Split, ...]:
        """All of them, by number."""
        return tuple(sorted(self, key=lambda split: split.number))

    def put(self, splits: Iterable[Split]) -> None:
        """Take in what was handed back, each from where it is to be read on."""
        for split in splits:
            if split.input in self._lines:
                insort(self._lines[split.input], split, key=place_of)
            else:
                self._splits[split.number] = split
        self._parts = {}

    def take(self, worker: WorkerId, loads: Mapping[WorkerId, int]) -> Split | None:
        """Return what this worker is to read next; None if there is nothing, or what is left goes to others first.

        `loads` are the bytes that each reader has; it is one of them. Cost: O(1), and now and then O(splits).
        """
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            input = self._turns[-1]
            if input is None and (split := self._take_dealt(worker, loads)) is not None:
                return split
            if input is not None and (line := self._lines[input]):
                return line.pop(0)
        return None

    def _take_dealt(self, worker: WorkerId, loads: Mapping[WorkerId, int]) -> Split | None:
        if not self._splits:
            return None
        if not self._parts.get(worker) or self._parts.keys() != loads.keys():
            parts = spread(self._splits.values(), sorted(loads), loads)
            self._parts = {each: list(reversed(parts.get(each, ()))) for each in loads}
        part = self._parts[worker]
        if part:
            split = part.pop()
        elif loads[worker]:
            return None  # others have less, and have been given none of these yet
        else:
            richest = max(sorted(self._parts), key=lambda each: sum(map(size_of, self._parts[each])))
            split = self._parts[richest].pop(0)
        return self._splits.pop(split.number)


def spread(
    splits: Iterable[Split], workers: Sequence[WorkerId], loads: Mapping[WorkerId, int] | None = None
) -> dict[WorkerId, tuple[Split, ...]]:
    """Give each split to a worker, so that bytes are balanced as well as whole splits allow; `loads`: what they have.

    The largest comes first, each goes to the worker with the fewest bytes so far, the lowest of several: without loads
    none has more than 4/3 of what it would have at best (Graham 1969). Each worker is given its own in the order of
    their numbers. Cost: O(splits * log(splits * workers)).

    >>> splits = [Split(number, "a", 0, size) for number, size in enumerate((10, 20, 30))]
    >>> {worker: [split.number for split in given] for worker, given in spread(splits, (0, 3)).items()}
    {0: [2], 3: [0, 1]}
    """
    given: dict[WorkerId, list[Split]] = {}
    heap = [((loads or {}).get(worker, 0), worker) for worker in workers]
    heapify(heap)
    for split in sorted(splits, key=lambda split: (-size_of(split), split.number)):
        load, worker = heap[0]
        heapreplace(heap, (load + size_of(split), worker))
        given.setdefault(worker, []).append(split)
    return {worker: tuple(sorted(some, key=lambda split: split.number)) for worker, some in given.items()}

"""The pool of splits that no reader holds, and the choice of the next split for each reader.

The pool deals the splits out on paper, a *part* for each reader, so that all would finish together. A reader that asks
gets the next split of its part, in the order of numbers. If a reader is faster than planned and has used up its part,
the rest is dealt anew. A reader that has nothing at all to read gets a split of another reader's part.

Files of an input that is read in an order are not dealt: each reader that asks gets the next one. Several such inputs
take turns. A reader asks for the inputs that it lacks. So it has files of each, and reads them interleaved.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Any, Final

from sortedcontainers import SortedKeyList

from megaflow.control.messages import Split
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import grouped

DIGITS: Final = re.compile("([0-9]+)")


def size_of(split: Split) -> int:
    """Return the number of bytes to read."""
    return split.end - split.start


def place_of(split: Split) -> tuple[tuple[Any, ...], int]:
    """Return the sort key of a split in an input that is read in the order of names."""
    return name_key(split.path, split.natural), split.start


@lru_cache(maxsize=1 << 16)
def name_key(path: str, natural: bool) -> tuple[Any, ...]:
    """Return the sort key of a path; `natural`: groups of digits count as numbers.

    >>> sorted(["part-10", "part-2", "part-02"], key=lambda path: name_key(path, True))
    ['part-02', 'part-2', 'part-10']
    >>> sorted(["part-10", "part-2"], key=lambda path: name_key(path, False))
    ['part-10', 'part-2']
    """
    if not natural:
        return (path,)
    parts = DIGITS.split(path)  # text and digits in turn
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip("0")
        parts[place] = f"{len(digits):09}{digits}"  # compares as the number, of any length
    return tuple(parts), path


class SplitPool:
    """Splits to be given to readers. One writer: `LinesToRead`.

    >>> pool = SplitPool(Split(number, "a", 0, 10) for number in range(3))
    >>> taken = pool.take(7, {4: 0, 7: 0}), pool.take(7, {4: 0, 7: 10}), pool.take(4, {4: 0, 7: 10})
    >>> [split and split.number for split in taken]
    [1, None, 0]
    """

    def __init__(self, splits: Iterable[Split] = (), ordered: Collection[str] = ()) -> None:
        """`ordered`: inputs whose files are read in the order of their names."""
        self._dealt: dict[str, dict[int, Split]] = {}  # input -> its splits that are dealt, by number
        self._parts: dict[WorkerId, dict[str, list[Split]]] = {}  # worker -> its part, by input; next split last
        self._lines = {input: SortedKeyList(key=place_of) for input in ordered}  # input in an order -> next split first
        self._turns: deque[str] = deque(sorted(ordered))  # inputs; the last one tried is at the end
        self.put(splits)

    def __len__(self) -> int:
        return sum(map(len, (*self._dealt.values(), *self._lines.values())))

    def __iter__(self) -> Iterator[Split]:
        """Iterate over all splits; those of an ordered input come in its order."""
        for some in self._dealt.values():
            yield from some.values()
        for line in self._lines.values():
            yield from line

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that have splits here."""
        return tuple(input for input in self._turns if self._dealt.get(input) or self._lines.get(input))

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits, by number."""
        return tuple(sorted(self, key=lambda split: split.number))

    def put(self, splits: Iterable[Split]) -> None:
        """Add splits, such as those handed back; each begins where reading must continue."""
        for split in splits:
            if split.input in self._lines:
                self._lines[split.input].add(split)
                continue
            if split.input not in self._dealt:
                self._dealt[split.input] = {}
                self._turns.append(split.input)
            self._dealt[split.input][split.number] = split
        self._parts = {}

    def pull(self, number: int) -> Split:
        """Remove and return the split of this number. Cost: O(splits)."""
        split = next(each for each in self if each.number == number)
        if split.input in self._lines:
            self._lines[split.input].remove(split)
        else:
            del self._dealt[split.input][number]
        self._parts = {}
        return split

    def take(
        self, worker: WorkerId, loads: Mapping[WorkerId, int], lacks: Callable[[str], bool] = lambda input: True
    ) -> Split | None:
        """Return the next split for this worker; None if there is none, or the rest goes to others first.

        `loads`: the bytes that each reader has, also this one. `lacks`: whether the worker needs more of an input.
        Cost: O(inputs), and now and then O(splits).
        """
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            input = self._turns[-1]
            if not lacks(input):
                continue
            if line := self._lines.get(input):
                split: Split | None = line.pop(0)
                return split
            if (split := self._take_dealt(input, worker, loads)) is not None:
                return split
        return self._take_from_others(worker, loads)

    def _take_dealt(self, input: str, worker: WorkerId, loads: Mapping[WorkerId, int]) -> Split | None:
        if not self._dealt.get(input):
            return None
        if self._parts.keys() != loads.keys() or not any(self._parts[worker].values()):
            every = (split for some in self._dealt.values() for split in some.values())
            parts = spread(every, sorted(loads), loads)
            self._parts = {each: _by_input(parts.get(each, ())) for each in loads}
        part = self._parts[worker].get(input)
        return self._dealt[input].pop(part.pop().number) if part else None

    def _take_from_others(self, worker: WorkerId, loads: Mapping[WorkerId, int]) -> Split | None:
        """Return a split from the largest part of another reader, for a worker that has nothing; else None."""
        if loads[worker] or not any(self._dealt.values()):
            return None
        sizes = {each: {input: sum(map(size_of, part)) for input, part in sorted(some.items())}
                 for each, some in sorted(self._parts.items())}  # fmt: skip
        richest = max(sizes, key=lambda each: sum(sizes[each].values()))
        input = max(sizes[richest], key=sizes[richest].__getitem__)
        return self._dealt[input].pop(self._parts[richest][input].pop(0).number)


def _by_input(splits: Iterable[Split]) -> dict[str, list[Split]]:
    """Return splits by input, each list in reverse order."""
    return {input: some[::-1] for input, some in grouped((split.input, split) for split in splits).items()}


def spread(
    splits: Iterable[Split], workers: Sequence[WorkerId], loads: Mapping[WorkerId, int] | None = None
) -> dict[WorkerId, tuple[Split, ...]]:
    """Give each split to a worker, so that bytes are balanced as well as whole splits allow.

    `loads`: the bytes that workers already have. Splits are given largest first, each to the worker with the fewest
    bytes so far, the lowest-numbered of several. Without loads no worker gets more than 4/3 of the least possible
    maximum (Graham 1969). Each worker's splits are in the order of their numbers.
    Cost: O(splits * log(splits * workers)).

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

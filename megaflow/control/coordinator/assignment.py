"""Which worker reads which splits."""

from collections.abc import Iterable, Sequence

from megaflow.control.messages import Split


def spread(splits: Iterable[Split], workers: Sequence[int]) -> dict[int, tuple[Split, ...]]:
    """Give each split, the next one always to the worker with the fewest bytes so far, the lowest of several.

    >>> splits = [Split(number, "a", number * 10, number * 10 + 10) for number in range(3)]
    >>> {worker: [split.number for split in given] for worker, given in spread(splits, (0, 3)).items()}
    {0: [0, 2], 3: [1]}
    """
    given: dict[int, list[Split]] = {worker: [] for worker in workers}
    loads = dict.fromkeys(workers, 0)
    for split in splits:
        worker = min(loads, key=lambda worker: (loads[worker], worker))
        loads[worker] += split.end - split.start
        given[worker].append(split)
    return {worker: tuple(some) for worker, some in given.items() if some}

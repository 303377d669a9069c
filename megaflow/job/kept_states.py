"""States at a job's checkpoints, for tests and notebooks: `megaflow.read_state`."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from megaflow.durable.local_folder import open_to_look
from megaflow.durable.reading import OperatorStates, find_operator, open_checkpoint
from megaflow.megaphone.base.bins import BinStore, stable_hash


def read_state(
    directory: str | os.PathLike[str],
    operator: str,
    checkpoint: int | str | None = None,
    *,
    hash: Callable[[Any], int] = stable_hash,
) -> Iterator[tuple[Any, Any]]:
    """Yield each (key, state) that an operator had at a checkpoint of the store `directory`, by default the newest one.

    States come bin by bin, in no promised order within a bin. `operator` is its `name=`, which `megaflow state ls`
    shows. `hash` is that of the operator. `checkpoint` is a number or a name. A job may be using the store: all states
    are those of the checkpoint that was chosen at the first step.

    Reading is lazy. The first step reads the changes since the bins were last written whole. Each later step reads one
    bin. The files stay open until the iterator ends or is closed. The caller owns the objects.

    Raises StoreError, at the first step, if there is no such store, checkpoint or operator, or if `hash` is not that of
    the operator. At any step, raises StoreError if the module of a state's class is not imported, StoreDamaged if a
    file is damaged, and OSError if a file cannot be read.

        >>> import megaflow
        >>> dict(megaflow.read_state("kept", "count"))  # doctest: +SKIP
        {'a': 2, 'rose': 3}
    """
    folder = open_to_look(directory)
    try:
        commit = open_checkpoint(folder, checkpoint)
        cut = find_operator(commit, operator)
        for _, states in OperatorStates(folder, commit, cut, BinStore(len(cut.bases), hash).bin_of_key).by_bin():
            yield from states.items()
    finally:
        folder.close_folder()

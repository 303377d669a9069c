"""What a job has kept of its states, for tests and notebooks: `megaflow.read_state`."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from megaflow.durable.local_folder import open_to_look
from megaflow.durable.reading import OperatorStates, find_operator, open_checkpoint
from megaflow.megaphone.bins import BinStore, stable_hash


def read_state(
    directory: str | os.PathLike[str],
    operator: str,
    checkpoint: int | str | None = None,
    *,
    hash: Callable[[Any], int] = stable_hash,
) -> Iterator[tuple[Any, Any]]:
    """Yield each (key, state) that an operator had at a checkpoint of the store `directory`, by default the newest one.

    By bin, and in no promised order within one. `operator` is its `name=`, which `megaflow state ls` shows; `hash` is
    the operator's; `checkpoint` is a number or a name. A job may be using the store: what is read is the one checkpoint
    that counted at the first step.

    Lazy: nothing is read before the first step, then what has changed since the bins were last written whole, and after
    that one bin at a time. The files stay open until the iterator ends or is closed. The objects are the caller's.

    Raises StoreError, at the first step, if there is no such store, checkpoint or operator, or if `hash` is not the
    operator's; at any step if a state is of a class whose module is not imported, StoreDamaged if a file is not as it
    was written, and OSError if one cannot be read.

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

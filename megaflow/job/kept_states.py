"""States at a job's checkpoints: `megaflow.read_state` for tests and notebooks, and their JSON for other readers.

`megaflow state export` writes that JSON. Spark reads it as the data source `megaflow-state`: one process chooses a
checkpoint (`choose_states`), and several others each read some bins of it (`read_as_json`).
"""

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from megaflow.durable.commits import Commit
from megaflow.durable.local_folder import LocalFolder, open_to_look
from megaflow.durable.reading import OperatorStates, Unreadable, find_operator, open_checkpoint
from megaflow.errors import MegaflowError, ProgramError, StoreDamaged, StoreError, UsageError
from megaflow.job.worker.writing import json_lines
from megaflow.megaphone.base.bins import BinStore, stable_hash
from megaflow.quick_dataclass import dataclass

STORE: Final = "megaflow"  # folder of a job's store in the checkpoint of its query of Spark
_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]+:")
_GONE: Final = (
    "A job has removed the chosen checkpoint, or the store was replaced. Choose the newest checkpoint again, or give a "
    "checkpoint a name (megaflow control checkpoint --name NAME), which the job then keeps."
)


@dataclass(frozen=True, slots=True)
class ChosenStates:
    """The states of one operator at one checkpoint of a store."""

    directory: str
    operator: str
    checkpoint: int
    written_at: float  # of the checkpoint, which tells it from one with its number in another store
    bins: int
    bytes: int  # of all operators together
    modules: tuple[str, ...]  # which define the classes of keys and states


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


def choose_states(
    path: str, operator: str | None = None, checkpoint: int | str | None = None, modules: Iterable[str] = ()
) -> ChosenStates:
    """Choose an operator, by default the only one, and a checkpoint, by default the newest one.

    `path` is a store, or the checkpoint of a query of Spark that contains one. Imports `modules`. Raises StoreError if
    there is no such store, checkpoint or operator, or if the keys are in other bins than `stable_hash` says; and
    UsageError for a module that cannot be imported.
    """
    directory, modules = folder_of(path), tuple(modules)
    import_all(modules)
    with looking_at(directory) as folder:
        commit = open_checkpoint(folder, checkpoint)
        names = [each.name for each in commit.operators]
        if operator is None and len(names) != 1:
            there = f"has the operators {', '.join(names)}: name one of them" if names else "has no stateful operator"
            raise StoreError(f"checkpoint {commit.checkpoint} of the store {directory} {there}")
        cut = find_operator(commit, names[0] if operator is None else operator)
        size = sum(segment.length for segment in commit.segments)
        chosen = ChosenStates(
            directory, cut.name, commit.checkpoint, commit.written_at, len(cut.bases), size, modules
        )
        states_in(folder, commit, chosen)
        return chosen


def read_as_json(chosen: ChosenStates, bins: range) -> Iterator[tuple[str, str, int]]:
    """Yield each key and its state as JSON, and its bin, for the keys of these bins.

    A state of a class that no module of `chosen` defines has the form `Unreadable`. Raises StoreError if the job has
    removed the checkpoint, or if it has keys of such classes; MegaflowError if a key or state has no form as JSON.
    """
    import_all(chosen.modules)
    with looking_at(chosen.directory) as folder:
        try:
            commit = open_checkpoint(folder, chosen.checkpoint)
        except StoreDamaged:
            raise
        except StoreError as error:
            raise StoreError(f"{error}. {_GONE}") from error
        if commit.written_at != chosen.written_at:
            raise StoreError(
                f"the store {chosen.directory} has another checkpoint {chosen.checkpoint} than before. {_GONE}"
            )
        for bin, found in states_in(folder, commit, chosen).by_bin(bins):
            for key, state in found.items():
                key_text = json_text(chosen.operator, key, key)
                yield key_text, json_text(chosen.operator, key, shown(state)), bin


def states_in(folder: LocalFolder, commit: Commit, chosen: ChosenStates) -> OperatorStates:
    """Return the states of an operator whose keys are placed by `stable_hash`. Raises StoreError."""
    cut = find_operator(commit, chosen.operator)
    try:
        return OperatorStates(folder, commit, cut, BinStore(chosen.bins).bin_of_key, may_be_unreadable=True)
    except StoreDamaged:
        raise
    except StoreError as error:
        raise StoreError(f"{error}. In Python, megaflow.read_state takes a hash.") from error
    except UsageError as error:  # a key of a class without a stable hash
        raise StoreError(f"operator {cut.name!r}: {error} In Python, megaflow.read_state takes a hash.") from error


@contextmanager
def looking_at(directory: str) -> Iterator[LocalFolder]:
    """Open a store to read it during the block."""
    folder = open_to_look(directory)
    try:
        yield folder
    finally:
        folder.close_folder()


def folder_of(path: str) -> str:
    """Return the folder of a store, also from the checkpoint of a query of Spark. Raises UsageError.

    >>> folder_of("file:/data/kept"), folder_of("file:///data/kept")
    ('/data/kept', '/data/kept')
    >>> folder_of("hdfs://host/kept")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: 'hdfs://host/kept' is not in a file system that this machine has mounted. ...
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if _SCHEME.match(path):
        raise UsageError(f"{path!r} is not in a file system that this machine has mounted. Name the store by its path.")
    inner = os.path.join(path, STORE)
    return os.path.abspath(inner if os.path.isdir(inner) else path)


def import_all(modules: Iterable[str]) -> None:
    """Import the modules that define the classes of keys and states. Raises UsageError."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"modules: {name!r} cannot be imported here ({error}). Set PYTHONPATH before Spark starts, or send the "
                "module to Spark's Python with spark.addArtifact(FILE, pyfile=True)."
            ) from error


def shown(state: Any) -> Any:
    """Return a state as it is put into JSON. A dict with keys such as tuples becomes a list of pairs.

    >>> shown({"seen": {("home",): (2,)}, "last": {"ann": 1}})
    {'seen': [[('home',), (2,)]], 'last': {'ann': 1}}
    """
    if isinstance(state, Unreadable):
        return asdict(state)
    if type(state) is dict:
        if any(isinstance(key, tuple | frozenset) for key in state):
            return [[key, shown(value)] for key, value in state.items()]
        return {key: shown(value) for key, value in state.items()}
    return [shown(each) for each in state] if type(state) is list else state


def json_text(operator: str, key: Any, value: Any) -> str:
    """Return a value as JSON, by the rules of the output. Raises MegaflowError if it has no form as JSON."""
    try:
        return json_lines.to_json(value)
    except ProgramError as error:
        what = str(error).removeprefix("--output jsonl: ").rpartition("; ")[0]
        raise MegaflowError(
            f"Operator {operator!r}, key {key!r:.80}: {what}. In Python, megaflow.read_state returns the state itself."
        ) from error

"""The states of an operator in a store, bin by bin, for processes that are not workers of its job. The job may run.

1. An open file can be read after its name is gone. So the commit of a checkpoint and all its segments are opened before
   the first one is read. If the job has removed one by then, it has committed a later checkpoint, which is tried next.
2. Bins count as in `restored`: their newest base, and the deltas that are not older. All deltas of an operator are read
   first and kept by bin, without those that a base has replaced; then the bases, one bin at a time. So the memory is
   that of the changes since the bases, and of one bin.
3. Only the operator's hash tells the bin of a key. The hash is tried on the keys of a base, so a different hash is
   refused; if all bases are empty, it cannot be checked.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

from megaflow.durable.blocks import Block, BlockKind, keys_of, states_of
from megaflow.durable.commits import Commit, OperatorCut, commit_name
from megaflow.durable.incarnation import is_newer, missing, read_commits
from megaflow.durable.inspection import StoreContent, inspect
from megaflow.durable.local_folder import LocalFolder
from megaflow.durable.restored import bare
from megaflow.durable.segments import IndexEntry, SegmentReader
from megaflow.durable.state_migration import among
from megaflow.durable.store import Store
from megaflow.errors import ProtocolError, StoreDamaged, StoreError, similar
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.class_names import unknown_in

ALL: Final = range(1 << 63)  # bins


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Placeholder for a state that contains unknown classes, or is encoded together with such states."""

    types: tuple[str, ...]  # names of the unknown classes in all states that are encoded together
    bytes: int  # of one of these states, approximately


def open_checkpoint(folder: LocalFolder, chosen: int | str | None = None) -> Commit:
    """Open the segments of a checkpoint, by number or name (None: the newest), for reading until the folder is closed.

    Raises StoreError if there is no such checkpoint, StoreDamaged, OSError.
    """
    return open_commits(folder, lambda content: [find_checkpoint(folder.path, content, chosen)])[0]


def open_commits(folder: LocalFolder, select: Callable[[StoreContent], Sequence[Commit]]) -> Sequence[Commit]:
    """Open the segments of some commits for reading until the folder is closed; return the commits."""
    store = Store(folder)
    while True:
        commits = select(inspect(store))
        try:
            folder.keep_open({name for commit in commits for name in names_of(commit)})
            return commits
        except FileNotFoundError as error:
            name, files = str(error.filename), store.list()
            for commit in commits:
                if commit_name(commit.number) in files and any(each.name == name for each in commit.files):
                    raise missing(commit.number, name) from error


def open_newest(folder: LocalFolder) -> list[Commit]:
    """Return the result of `read_commits`; all files of the newest commit stay open, even if a job removes them."""
    store = Store(folder)
    while True:
        found = read_commits(store)
        try:
            folder.keep_open(name for commit in found[:1] for name in names_of(commit))
            return found
        except FileNotFoundError as error:
            if not is_newer(store, [commit.number for commit in found[:1]]):
                raise missing(found[0].number, str(error.filename)) from error


def names_of(commit: Commit) -> set[str]:
    """Return the names of a commit's file and of all its segments."""
    return {commit_name(commit.number), *(segment.name for segment in commit.files)}


def find_checkpoint(path: str, content: StoreContent, chosen: int | str | None) -> Commit:
    """Return the commit of a checkpoint by number or name, or the newest one. Raises StoreError if it does not exist.

    A number may also be given as digits in a str.
    """
    names = dict(content.commits[-1].named) if content.commits else {}
    wanted = int(chosen) if isinstance(chosen, str) and chosen.isdecimal() else chosen
    if wanted is None and content.newest is not None:
        return content.newest
    for commit in reversed(content.commits):
        if wanted == commit.checkpoint or (isinstance(wanted, str) and names.get(wanted) == commit.number):
            return commit
    if content.damage:
        sound = ", ".join(map(str, sorted({each.checkpoint for each in content.commits})))
        hint = f"; readable checkpoints, by number: {sound}" if sound else ""
        raise StoreDamaged("; ".join(content.damage) + hint)
    there = ", ".join(map(str, [*sorted({each.checkpoint for each in content.commits}), *names]))
    near = similar(str(chosen), names)
    question = f"; did you mean {near!r}? It" if near else "; it"
    raise StoreError(f"the store {path} has no checkpoint {chosen}{question} has {there}")


def find_operator(commit: Commit, name: str) -> OperatorCut:
    """Return an operator's cut in a commit. Raises StoreError if the commit has no operator of that name."""
    names = [each.name for each in commit.operators]
    if name in names:
        return commit.operators[names.index(name)]
    raise StoreError(f"checkpoint {commit.checkpoint} has no operator {name!r}{among(name, names, 'It has')}")


class OperatorStates:
    """The states of one operator in a checkpoint whose segments are open."""

    def __init__(
        self,
        folder: LocalFolder,
        commit: Commit,
        cut: OperatorCut,
        bin_of_key: Callable[[Any], int],
        may_be_unreadable: bool = False,
    ) -> None:
        """Read the indexes of the segments.

        With `may_be_unreadable`, states with classes that this process does not know become `Unreadable`. Raises
        StoreError if `bin_of_key` is not the operator's; this and the methods raise StoreDamaged or OSError.
        """
        self._cut = cut
        self._bin_of_key = bin_of_key
        self._may_be_unreadable = may_be_unreadable
        self._bases: dict[int, int] = {}  # bin -> checkpoint of its newest base
        self._whole: dict[int, list[tuple[SegmentReader, IndexEntry]]] = {}  # bin -> blocks of that base
        self._deltas: list[tuple[int, SegmentReader, IndexEntry]] = []  # by checkpoint
        store = Store(folder)
        for ref in sorted(commit.segments, key=lambda each: each.checkpoint):
            reader = ref.open(store.read)
            for entry in reader.entries:
                if entry.operator == cut.name:
                    self._note(ref.checkpoint, reader, entry)
        self._check_hash()

    def _note(self, number: int, reader: SegmentReader, entry: IndexEntry) -> None:
        if entry.kind is BlockKind.DELTA:
            self._deltas.append((number, reader, entry))
        elif entry.kind is BlockKind.BIN and entry.bin is not None:
            if self._bases.get(entry.bin) != number:
                self._bases[entry.bin], self._whole[entry.bin] = number, []
            self._whole[entry.bin].append((reader, entry))

    def _check_hash(self) -> None:
        """Try the hash on the keys of the longest block of any base: some 500 keys if a bin has as many."""
        blocks = [each for blocks in self._whole.values() for each in blocks]
        reader, entry = max(blocks, key=lambda each: each[1].count, default=(None, None))
        if reader is None or entry is None:
            return
        for key in self._keys(reader.block(entry)):
            if self._bin_of_key(key) != entry.bin:
                raise StoreError(
                    f"operator {self._cut.name!r} had key {key!r:.80} in bin {entry.bin}, but its hash gives bin "
                    f"{self._bin_of_key(key)}, so no key can be found: the program has its own hash=, or the class "
                    "of its keys has its fields in another order"
                )

    def by_bin(self, bins: Container[int] = ALL) -> Iterator[tuple[int, dict[Any, Any]]]:
        """Yield each bin in `bins` with its keys and states. Cost: all keys that changed since the bases.

        The first step reads these keys; each step reads one bin.
        """
        changed = self._changed(bins)
        for bin in sorted(bin for bin in self._bases if bin in bins):
            states: dict[Any, Any] = {}
            for reader, entry in self._whole[bin]:
                block = reader.block(entry)
                states.update(zip(self._keys(block), self._states(block), strict=True))
            states.update(changed.pop(bin, {}))
            yield bin, {key: state for key, state in states.items() if state is not None}

    def find(self, key: Any) -> Any:
        """Return the state of a key; None if it has none. Raises UsageError for a value that cannot be a key."""
        bin = self._bin_of_key(key)
        return next((states.get(key) for _, states in self.by_bin((bin,))), None)

    def _changed(self, bins: Container[int]) -> dict[int, dict[Any, Any]]:
        """Return the changes since the bases: bin -> key -> state, or None if the key is gone."""
        changed: dict[int, dict[Any, Any]] = {}
        for number, reader, entry in self._deltas:
            block = reader.block(entry)
            keys = self._keys(block)
            at = list(map(self._bin_of_key, keys))
            mine = [place for place, bin in enumerate(at) if bin in bins and self._bases.get(bin, number + 1) <= number]
            states = self._states(block) if mine else []
            for place in mine:
                changed.setdefault(at[place], {})[keys[place]] = states[place]
        return changed

    def _keys(self, block: Block) -> list[Any]:
        try:
            return keys_of(block)
        except ProtocolError as error:
            raise self._unreadable(block.keys, "keys", error) from error

    def _states(self, block: Block) -> list[Any]:
        try:
            return [None if state is None else bare(self._cut.kind, state) for state in states_of(block)]
        except ProtocolError as error:
            if self._may_be_unreadable and (types := unknown_in(block.states)):
                return [Unreadable(tuple(types), round(len(block.states) / block.count))] * block.count
            raise self._unreadable(block.states, "states", error) from error

    def _unreadable(self, encoded: bytes, what: str, error: ProtocolError) -> StoreError:
        types = ", ".join(unknown_in(encoded))
        if not types:
            return StoreError(str(error))
        return StoreError(
            f"operator {self._cut.name!r} has {what} of unknown classes ({types}): load the program that defines "
            "them first"
        )

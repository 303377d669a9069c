"""The states and timers of an operator, rebuilt from the blocks of a checkpoint and of its predecessors.

The *chain* of a checkpoint is the checkpoint itself, its `since`, the `since` of that one, and so on to one that has
none.
 1. A bin begins with its newest BIN blocks in the chain, its *base*; nothing written before them counts. All these
    blocks come from one cut of one worker.
 2. A delta counts unless it is older than its key's base. A delta of the same checkpoint is of the same cut: it has
    keys that were touched while their bin waited to be written, and that the base lacks.
 3. Timers count in the same way: a cut that writes a bin whole writes all its timers. No timer is written twice,
    because each cut contains the timers set since its predecessor. Timers due before the checkpoint's time have fired.
    Event timers that the checkpoint's watermark or clock has reached have also fired. They are still returned here: the
    operator knows watermark and clock, and leaves them out.
    Event timers whose count had not begun belong to the checkpoint alone, because each cut writes them anew.

A *descriptor* describes the operator that asks for states and timers. The operator may have changed since the
checkpoint (`state_migration`).
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import field, is_dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from megaflow.durable.blocks import OF_TIMERS, UNBEGUN, Block, BlockKind, keys_of, states_of
from megaflow.durable.key_kinds import KeyKinds
from megaflow.errors import StoreError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped

Hash: TypeAlias = Callable[[Any], int]
Upgrade: TypeAlias = Callable[[Any, Any, int], Any]
"""Key, state, version of the state -> state of the present version, or None to forget the key."""


BY_CLOCK: Final = "lasts by the clock"
"""Kind of an operator that stores each state with its start, in microseconds of the clock; None: not started yet."""
BY_EVENTS: Final = "lasts by timestamps"
"""Likewise, with microseconds of event time. All other operators have the kind ""."""

Adapt: TypeAlias = Callable[[Any], Any]
"""State in a store -> state with which an operator continues."""
WINDOWS: Final = "windows: "
"""Prefix of the form of a windowed stream."""


def unchanged(state: Any) -> Any:
    """Return the state unchanged."""
    return state


class Form(Protocol):
    """Form of an operator's states, if it is known. A commit records it, and the next program is compared with it."""

    def text(self) -> str:
        """Return the form for a commit. Valid once the dataflow is built."""

    def adapter(self, kept: str) -> Adapt | None:
        """Return the adapter from states of a commit's form `kept` to this form; None if there is none."""

    def upgrading(self, upgrade: Upgrade, furthest: int | None, has_other_windows: bool) -> Upgrade:
        """Return the program's `upgrade`, or one that also handles what this form keeps beside the program's states.

        `furthest`: the greatest timestamp of all records before the checkpoint, in microseconds; None: not known.
        `has_other_windows`: see `state_migration`.
        """


@dataclass(frozen=True, slots=True)
class NamedForm:
    """States with a known name: a count, a sum."""

    name: str
    earlier: str = ""  # the name in an earlier megaflow of states that `adapt` converts; "": it named none
    adapt: Adapt = unchanged

    def text(self) -> str:
        """Return the name."""
        return self.name

    def upgrading(self, upgrade: Upgrade, furthest: int | None, has_other_windows: bool) -> Upgrade:
        """Return the program's function."""
        return upgrade

    def adapter(self, kept: str) -> Adapt | None:
        """Return an adapter for states of this name or the earlier one; None for all others."""
        if kept == self.name:
            return unchanged
        return self.adapt if kept == self.earlier else None


@dataclass(frozen=True, slots=True)
class AnyForm:
    """States that only the program knows: any except those of windows."""

    def text(self) -> str:
        """Return an empty text."""
        return ""

    def upgrading(self, upgrade: Upgrade, furthest: int | None, has_other_windows: bool) -> Upgrade:
        """Return the program's function."""
        return upgrade

    def adapter(self, kept: str) -> Adapt | None:
        """Return None for states of windows, `unchanged` for all others."""
        return None if kept.startswith(WINDOWS) else unchanged


ANY_FORM: Final = AnyForm()


@dataclass(frozen=True, slots=True)
class Terms:
    """An operator's terms for states that an earlier run has kept."""

    version: int = 1  # of its states
    upgrade: Upgrade | None = None  # for states of an earlier version
    rehash: Hash | None = None  # the earlier hash; None: the hash must not have changed
    kind: str = ""  # BY_CLOCK, BY_EVENTS or ""
    form: Form = ANY_FORM
    is_named: bool = True  # whether the program named the operator; False: its name comes from a method or a lambda
    fold: Callable[..., Any] | None = None  # the program's function; None: the operator has one of megaflow's


@dataclass(frozen=True, slots=True)
class StateDescriptor:
    """A stateful operator of a program, which continues with states of a store, or begins without."""

    name: str
    bins: int
    binning: Callable[[int, Hash | None], Callable[[Any], int]]  # bins, hash (None: its own) -> bin of a key
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Restored:
    """Initial states and timers of one operator."""

    states: dict[int, dict[Any, Any]]  # bin -> key -> state; of each requested bin that was written
    timers: dict[int, list[tuple[Any, Any, Any]]]  # bin -> (time, key, payload), by time, in the order of setting
    # states that are in memory already, to take over as they are: key -> state; bin -> keys, as in a `BinStore`
    kept: tuple[dict[Any, Any], dict[int, dict[Any, None]]] | None = None
    bases: tuple[int | None, ...] = ()  # bin -> checkpoint of its base; () if the number of bins has changed
    # like `timers`, but event timers, with times (line, microseconds); includes those that had become due
    events: dict[int, list[tuple[Any, Any, Any]]] = field(default_factory=dict)
    key_kinds: KeyKinds | None = None  # if new keys must be of a kind that the store has
    forgotten: int = 0  # keys whose states an upgrade has given up


def restore(
    chain: Iterable[tuple[int, Iterable[Block]]],
    operator: str,
    time: int,
    bin_of_key: Callable[[Any], int],
    bins: Container[int],
    was: Callable[[Any], int] | None = None,
    old: bool = False,
) -> Restored:
    """Return the content of an operator's bins in a checkpoint at `time`, for those in `bins`.

    `chain`: (number of a checkpoint, blocks of all workers), the oldest first. `was` returns the bin of a key at the
    time of writing, if that may differ from the present one. Keys are decoded first; states only if a key of these bins
    is among them. Cost: linear in the blocks; with `was`, the keys of all bins are decoded. `old`: objects in states
    that do not fit their classes become old records, for an upgrade.

    Raises StoreError if the first key of a bin's block does not belong there.
    """
    placed = bin_of_key if was is None else was
    written = [(number, [block for block in blocks if block.operator == operator]) for number, blocks in chain]
    blocks = [(number, block) for number, found in written for block in found]
    newest = max((number for number, _ in written), default=0)
    bases = {block.bin: number for number, block in blocks if block.kind is BlockKind.BIN}  # the newest comes last
    states: dict[int, dict[Any, Any]] = {}
    if was is None:
        states.update((bin, {}) for bin in bases if bin is not None and bin in bins)
    timers: list[tuple[Any, int, Any, Any]] = []
    events: list[tuple[Any, int, Any, Any]] = []
    for number, block in blocks:
        bin = block.bin
        if bin is not None and (number < bases[bin] or (was is None and bin not in bins)):
            continue
        keys = keys_of(block)
        if bin is not None and keys and placed(keys[0]) != bin:
            raise misplaced(operator, keys[0], bin, placed(keys[0]))
        if was is None and bin is not None and block.kind is BlockKind.BIN:  # most of a store: all of it counts
            states[bin].update(zip(keys, states_of(block, old), strict=True))
            continue
        before = list(map(placed, keys)) if bin is None else [bin] * len(keys)
        if was is None:
            at = before
            mine = [place for place, bin in enumerate(at) if bin in states and number >= bases[bin]]
        else:
            at = list(map(bin_of_key, keys))
            valid = (old in bases and number >= bases[old] for old in before)
            mine = [place for place, is_valid in enumerate(valid) if is_valid and at[place] in bins]
            for place in mine:
                states.setdefault(at[place], {})
        found = states_of(block, old and block.kind not in OF_TIMERS) if mine else []
        for place in mine:
            bin, key, state = at[place], keys[place], found[place]
            if block.kind is BlockKind.TIMERS:
                timers.append((state[0], bin, key, state[1]))
            elif block.kind is BlockKind.EVENTS:
                if number == newest or state[0][0] != UNBEGUN:
                    events.append((state[0], bin, key, state[1]))
            elif state is None:
                states[bin].pop(key, None)
            else:
                states[bin][key] = state
    due = [timer for timer in timers if (timer[0] if type(timer[0]) is int else timer[0][0]) >= time]  # nested: (t, i)
    return Restored(states, _by_bin(due), events=_by_bin(events))


def bare(kind: str, state: Any) -> Any:
    """Return the fold's own state, without what an operator of this kind keeps beside it.

    >>> bare(BY_CLOCK, (7_000_000, "a")), bare("", (7, "a"))
    ('a', (7, 'a'))
    """
    return state[1] if kind else state


def _by_bin(timers: list[tuple[Any, int, Any, Any]]) -> dict[int, list[tuple[Any, Any, Any]]]:
    ordered = sorted(timers, key=lambda timer: timer[0])
    return grouped((bin, (when, key, payload)) for when, bin, key, payload in ordered)


def misplaced(operator: str, key: Any, was: int, now: int) -> StoreError:
    """Return the error for an operator whose `hash=` has changed, or whose keys' class has."""
    kind = type(key)
    is_own = is_dataclass(kind) or isinstance(key, Enum) or (issubclass(kind, tuple) and kind is not tuple)
    fields = (
        f"if the fields of class {kind.__qualname__} or their order have changed since the states were written, "
        "restore them, because no rehash= can find the keys; otherwise "
    )
    return StoreError(
        f"operator {operator!r} had key {key!r:.80} in bin {was}, but now it belongs to bin {now}: "
        f"{fields if is_own else ''}give the old hash= again; or, to place all keys anew, pass the old hash as "
        "rehash= (True if it was stable_hash)"
    )

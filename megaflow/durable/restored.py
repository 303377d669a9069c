"""The states and timers of an operator, rebuilt from the blocks of a checkpoint and of those that it follows.

Checkpoint n follows its `since`, that one its own, and so on to one that follows none: these are its *chain*.
 1. A bin begins as its newest BIN blocks in the chain have it, its *base*: what was written before does not count.
    All these blocks are one worker's, of one cut.
 2. A delta counts unless it is older than its key's base. One as old is of the same cut: a key that was touched while
    its bin waited to be written, and is not in the base.
 3. Timers count likewise: a cut that writes a bin whole writes all its timers. None is written twice, as each cut has
    those set since the one that it follows. Those due before the checkpoint's time have fired. Of event timers those
    have fired that the checkpoint's watermark and clock have reached, which the heir knows; and those whose count had
    not begun are the checkpoint's own, for each cut writes them anew.

An operator that asks for them is an *heir*: it may have become another one meanwhile (`inheritance`).
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import field, is_dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from megaflow.durable.blocks import OF_TIMERS, UNBEGUN, Block, BlockKind, keys_of, states_of
from megaflow.durable.key_kinds import KeyKinds
from megaflow.errors import StoreError
from megaflow.quick_dataclass import dataclass

Hash: TypeAlias = Callable[[Any], int]
Upgrade: TypeAlias = Callable[[Any, Any, int], Any]
"""Key, state, the version that has made it -> state of the present version, None to forget the key."""


BY_CLOCK: Final = "lasts by the clock"
"""The kind of an operator beside whose states stands since when each lasts: microseconds of the clock, or None."""
BY_EVENTS: Final = "lasts by timestamps"
"""Likewise, of event time. Of all other operators the kind is ""."""

Adapt: TypeAlias = Callable[[Any], Any]
"""A state in a store -> the state that an operator goes on with."""
WINDOWS: Final = "windows: "
"""How the form of a windowed stream begins."""


def unchanged(state: Any) -> Any:
    """Return the state as it is."""
    return state


class Form(Protocol):
    """Of what an operator's states are, where this can be told: a commit says it, and the next program is compared."""

    def text(self) -> str:
        """Return it as a commit has it; once the dataflow is built."""

    def adapter(self, kept: str) -> Adapt | None:
        """Return what makes a state of this form of one of the form that a commit has; None if nothing does."""


@dataclass(frozen=True, slots=True)
class NamedForm:
    """States that are called so: a count, a sum."""

    name: str

    def text(self) -> str:
        """Return the name."""
        return self.name

    def adapter(self, kept: str) -> Adapt | None:
        """Refuse states of another name."""
        return unchanged if kept == self.name else None


@dataclass(frozen=True, slots=True)
class AnyForm:
    """States of which only the program knows what they are: any but those of windows."""

    def text(self) -> str:
        """Say nothing."""
        return ""

    def adapter(self, kept: str) -> Adapt | None:
        """Refuse the states of windows."""
        return None if kept.startswith(WINDOWS) else unchanged


ANY_FORM: Final = AnyForm()


@dataclass(frozen=True, slots=True)
class Terms:
    """What an operator says of the states that an earlier run has kept."""

    version: int = 1  # of its states
    upgrade: Upgrade | None = None  # for those of an earlier one
    rehash: Hash | None = None  # the hash that it had before; None: it may not have changed
    kind: str = ""  # BY_CLOCK, BY_EVENTS or ""
    form: Form = ANY_FORM


@dataclass(frozen=True, slots=True)
class Heir:
    """A stateful operator of a program, which goes on with states of a store, or begins with none."""

    name: str
    bins: int
    binning: Callable[[int, Hash | None], Callable[[Any], int]]  # bins, a hash or None for its own -> the bin of a key
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Restored:
    """What one operator begins with."""

    states: dict[int, dict[Any, Any]]  # bin -> key -> state; of every bin that was asked for and has been written
    timers: dict[int, list[tuple[Any, Any, Any]]]  # bin -> (time, key, payload), by time, in the order of setting
    # what is in memory already, to be taken over as it is: key -> state; bin -> keys, as a `BinStore` has them
    kept: tuple[dict[Any, Any], dict[int, dict[Any, None]]] | None = None
    bases: tuple[int | None, ...] = ()  # bin -> checkpoint that has its base; () if they are other bins now
    # as `timers`: event timers, whose times are (line, microseconds); those that had become due are among them
    events: dict[int, list[tuple[Any, Any, Any]]] = field(default_factory=dict)
    key_kinds: KeyKinds | None = None  # if the keys that come are to be of the kinds that the store has


def restore(
    chain: Iterable[tuple[int, Iterable[Block]]],
    operator: str,
    time: int,
    bin_of_key: Callable[[Any], int],
    bins: Container[int],
    was: Callable[[Any], int] | None = None,
    old: bool = False,
) -> Restored:
    """Return what an operator's bins are in a checkpoint at `time`, for those in `bins`.

    `chain`: number of a checkpoint -> the blocks of all workers, the oldest first. `was` gives the bin in which a key
    was when they were written, if that may be another than it has now. Keys are decoded first; states only if a key of
    these bins is among them. Cost: linear in the blocks; with `was` the keys of all bins are decoded. `old`: objects in
    states that do not fit their classes are old records, which an upgrade gets.

    Raises StoreError if the first key of a bin's block was not to be there.
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
    """Return the state that a fold has returned, of what an operator of some kind keeps.

    >>> bare(BY_CLOCK, (7_000_000, "a")), bare("", (7, "a"))
    ('a', (7, 'a'))
    """
    return state[1] if kind else state


def _by_bin(timers: list[tuple[Any, int, Any, Any]]) -> dict[int, list[tuple[Any, Any, Any]]]:
    found: dict[int, list[tuple[Any, Any, Any]]] = {}
    for when, bin, key, payload in sorted(timers, key=lambda timer: timer[0]):
        found.setdefault(bin, []).append((when, key, payload))
    return found


def misplaced(operator: str, key: Any, was: int, now: int) -> StoreError:
    """Return the error for an operator whose `hash=` has changed, or the class of whose keys has."""
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

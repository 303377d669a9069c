"""The journal of one operator, with events given by hand. The simulation of cuts tests how they reach it."""

from collections import Counter
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.durable.blocks import KEYS_PER_BLOCK, Block, BlockKind, keys_of
from megaflow.durable.restored import Restored, restore
from megaflow.errors import CommandRefused, ProtocolError
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.durability import Piece
from megaflow.megaphone.base.routing import Checkpoint, Command, validate
from megaflow.megaphone.snapshot.full_snapshots import HASTE, IDLE_SHARE, ROUND_CUTS, WHOLE_SHARE
from megaflow.megaphone.snapshot.journal import Journal
from megaflow.megaphone.snapshot.snapshot_writer import RUN_BYTES, SLICE_SECONDS, SLICE_SHARE

BINS = 16


class Operator:
    """S as the journal sees it, with the written blocks: checkpoint -> blocks."""

    def __init__(self, tick: float = 0.0, block_seconds: float = 0.0) -> None:
        self.store = BinStore(BINS)
        for bin in range(BINS):
            self.store.install(bin, [])
        self.written: dict[int, list[Block]] = {}
        self.complete: list[int] = []
        self.woken = 0
        self.seconds = 0.0
        self.tick = tick
        self.block_seconds = block_seconds  # to make one
        self.journal = Journal("count", self.store, self.sink, self.now, self.now)
        self.journal.wake = self.wake
        self.store.watcher = self.journal
        self.since: dict[int, int | None] = {}

    def now(self) -> float:
        self.seconds += self.tick
        return self.seconds

    def wake(self) -> None:
        self.woken += 1

    def sink(self, cut: Piece, block: Block | None) -> None:
        if block is None:
            self.complete.append(cut.number)
        else:
            self.written.setdefault(cut.number, []).append(block)
            self.seconds += self.block_seconds

    def apply(self, time: int, states: dict[Any, Any]) -> None:
        self.journal.before(time)
        self.journal.touch(states)
        for key, state in states.items():
            if state is None:
                self.store.forget(key)
            elif key in self.store.states:
                self.store.states[key] = state
            else:
                self.store.create(key, state)

    def checkpoint(self, number: int, time: int, since: int | None) -> None:
        self.since[number] = since
        self.journal.register(time, Checkpoint(number, since))
        self.journal.before(time)

    def restored(self, number: int, time: int) -> Restored:
        chain: list[tuple[int, list[Block]]] = []
        following: int | None = number
        while following is not None:
            chain.append((following, self.written.get(following, [])))
            following = self.since[following]
        return restore(chain[::-1], "count", time, self.store.bin_of_key, range(BINS))

    def states(self, number: int) -> dict[Any, Any]:
        return {key: state for states in self.restored(number, 0).states.values() for key, state in states.items()}


@pytest.mark.parametrize(
    "command, reason",
    [
        (Checkpoint(0), "an int of at least 1, not 0"),
        (Checkpoint("a"), "not 'a'"),  # type: ignore[arg-type]
        (Checkpoint(3, 3), "since=3 must be the number of an earlier checkpoint"),
        (Checkpoint(3, True), "since=True must be"),
    ],
)
def test_a_checkpoint_with_a_wrong_number_is_refused(command: Command, reason: str) -> None:
    with pytest.raises(CommandRefused, match=reason):
        validate(command, 8, {0, 1})


def test_a_checkpoint_may_follow_an_earlier_one_or_none() -> None:
    for command in Checkpoint(1), Checkpoint(7, 2):
        validate(command, 8, {0})


def test_a_checkpoint_that_follows_what_is_not_known_any_more_is_no_protocol() -> None:
    operator = Operator()
    operator.checkpoint(1, 5, None)
    operator.checkpoint(2, 6, 1)
    with pytest.raises(ProtocolError, match="follows checkpoint 0, but 1 is the newest committed one"):
        operator.journal.register(7, Checkpoint(3, 0))


def test_what_is_written_in_slices_is_as_of_the_cut_and_each_slice_ends_in_time() -> None:
    operator = Operator(tick=SLICE_SECONDS)
    before = {number: number for number in range(3000)}
    operator.apply(1, before)
    operator.checkpoint(0, 5, None)
    slices = 0
    while not operator.complete:
        operator.journal.write()
        slices += 1
        operator.apply(5 + slices, dict.fromkeys(range(0, 3000, 100), -1) | {f"new {slices}": 1})
    assert operator.states(0) == before
    assert slices >= 16 and operator.woken >= slices
    assert sum(operator.written[0][number].count for number in range(slices)) > 0


@pytest.mark.parametrize("turn_ms", [0.25, 20])
def test_while_records_are_applied_a_cut_has_its_share_of_the_time_and_no_slice_is_long(turn_ms: float) -> None:
    block_ms, slices = 0.2, [0.0]
    operator = Operator(block_seconds=block_ms / 1000)
    operator.apply(0, dict.fromkeys(range(100_000), 0))
    operator.checkpoint(0, 1, None)
    while not operator.complete:
        operator.apply(1, {7: len(slices)})
        operator.seconds += turn_ms / 1000
        began = operator.seconds
        operator.journal.write(is_idle=False)
        slices.append((operator.seconds - began) * 1000)
    written, all = sum(slices), sum(slices) + turn_ms * (len(slices) - 1)
    assert max(slices) <= 1000 * SLICE_SECONDS + block_ms
    assert written <= SLICE_SHARE * all + max(slices)
    assert written >= 0.9 * min(SLICE_SHARE * all, 1000 * SLICE_SECONDS * len(slices)), "and not less"


def test_with_nothing_else_to_do_each_slice_is_a_block() -> None:
    operator = Operator(block_seconds=1.0)
    operator.apply(0, dict.fromkeys(range(3000), 0))
    operator.checkpoint(0, 1, None)
    operator.journal.write()
    for blocks in range(2, 9):
        operator.journal.write()
        assert len(operator.written[0]) == blocks


def test_a_run_of_large_states_is_one_key_and_of_small_ones_a_block() -> None:
    for state, longest in ("x" * RUN_BYTES, 1), (1, KEYS_PER_BLOCK):
        operator = Operator()
        operator.apply(0, dict.fromkeys(range(-9000, 0), 1))
        operator.checkpoint(0, 1, None)
        operator.apply(1, dict.fromkeys(range(2000 if longest > 1 else 20), state))
        operator.checkpoint(1, 2, 0)
        operator.journal.write(all=True)
        counts = Counter(block.count for block in operator.written[1] if block.kind is BlockKind.DELTA)
        assert max(counts) == longest, counts


def test_all_bins_come_round_at_the_latest_when_the_deltas_have_as_many_keys_as_they() -> None:
    operator = Operator()
    operator.apply(0, dict.fromkeys(range(1600), 0))
    operator.checkpoint(0, 1, None)
    operator.journal.write(all=True)
    bases: list[int | None] = []
    for number in range(1, 11):
        operator.apply(2 * number, dict.fromkeys(range(160), number))
        operator.checkpoint(number, 2 * number + 1, number - 1)
        operator.journal.write(all=True)
        written = operator.written[number]
        assert sum(block.count for block in written) < 160 * (1 + HASTE) + 2 * 1600 // BINS
        bases += dict.fromkeys(block.bin for block in written if block.kind is BlockKind.BIN)
    assert set(bases) == set(range(BINS)) and len(bases) <= 2 * BINS
    assert operator.states(10) == operator.store.states


def test_all_bins_come_round_through_attempts_of_one_checkpoint_each() -> None:
    states = dict.fromkeys(range(1600), 0)
    bases: list[int | None] = [1] * BINS
    oldest = []
    for number in range(2, 50):
        operator = Operator()
        operator.store.watcher = None
        for key, state in states.items():
            operator.store.create(key, state)
        operator.store.watcher = operator.journal
        operator.journal.bases.begin(bases)
        operator.apply(1, dict.fromkeys(range(16), number))
        states = dict(operator.store.states)
        operator.checkpoint(number, 2, number - 1)
        operator.journal.write(all=True)
        for block in operator.written[number]:
            if block.kind is BlockKind.BIN:
                assert block.bin is not None
                bases[block.bin] = number
        oldest.append(number - min(base for base in bases if base is not None))
    assert max(oldest) <= 2 * BINS, "what is older is needed no more"


@pytest.mark.parametrize("share", [0.04, 0.1, 0.24, 0.3, 0.9])
def test_a_store_that_keeps_one_checkpoint_has_at_most_two_and_a_half_times_the_state(share: float) -> None:
    keys = 6400
    operator = Operator()
    operator.apply(0, {f"key {key}": key for key in range(keys)})
    operator.checkpoint(0, 1, None)
    operator.journal.write(all=True)
    size = [size_of(operator.written[0])]
    base_of = dict.fromkeys(range(BINS), 0)
    for number in range(1, 60):
        changed = range(number, number + int(share * keys))
        operator.apply(2 * number, {f"key {key * 7919 % keys}": number for key in changed})
        operator.checkpoint(number, 2 * number + 1, number - 1)
        operator.journal.write(all=True)
        blocks = operator.written[number]
        size.append(size_of(blocks))
        base_of |= {block.bin: number for block in blocks if block.kind is BlockKind.BIN and block.bin is not None}
        assert sum(size[min(base_of.values()) :]) <= 2.5 * size[0], number
    assert operator.states(59) == operator.store.states and min(base_of.values()) > 0
    each = 2.5 * share if share < 1 / WHOLE_SHARE else 1  # share of the state, at a cut
    assert sum(size) < (59 * each + 2) * size[0], "what is written follows what has changed"


def size_of(blocks: list[Block]) -> int:
    """Return the bytes of blocks without the index."""
    return sum(len(block.keys) + len(block.states) for block in blocks)


def test_all_bins_come_round_however_little_changes_and_if_nothing_does_seldom_is_anything_written() -> None:
    operator = Operator()
    operator.apply(0, dict.fromkeys(range(1600), 0))
    operator.checkpoint(0, 1, None)
    last = dict.fromkeys(range(BINS), 0)
    wrote = 0
    for number in range(1, 3 * ROUND_CUTS):
        if number < 2 * ROUND_CUTS:
            operator.apply(2 * number, {7: number})
        operator.checkpoint(number, 2 * number + 1, number - 1)
        operator.journal.write(all=True)
        blocks = operator.written.get(number, [])
        last |= {block.bin: number for block in blocks if block.bin is not None}
        assert number - min(last.values()) <= ROUND_CUTS + ROUND_CUTS // BINS + ROUND_CUTS // IDLE_SHARE, number
        wrote += bool(blocks) and number >= 2 * ROUND_CUTS
    assert 0 < wrote <= IDLE_SHARE


def test_what_is_written_of_a_bin_that_leaves_is_as_of_the_cut_though_it_has_new_keys() -> None:
    operator = Operator(tick=SLICE_SECONDS)
    keys = dict.fromkeys(range(40), 1)
    operator.apply(0, keys)
    operator.checkpoint(0, 1, None)
    operator.journal.write(all=True)
    gone = dict.fromkeys(keys, None)
    operator.apply(1, gone)
    operator.checkpoint(1, 5, 0)
    operator.apply(5, keys)  # all are recorded as removed
    while operator.journal.is_busy:
        operator.journal.write()
        if not operator.complete or operator.complete[-1] == 0:
            for bin in range(BINS):
                operator.journal.leaving(bin)
    assert operator.states(1) == {} and operator.complete == [0, 1]


def test_a_bin_that_left_before_a_cut_and_comes_back_before_it_is_written_is_not_in_it() -> None:
    """The owner at the cut writes the bin whole. A key removed here would be removed there as well."""
    operator, bin = Operator(), BINS - 1
    operator.apply(0, dict.fromkeys(range(400), 1))
    operator.checkpoint(0, 1, None)
    operator.journal.write(all=True)
    operator.apply(1, dict.fromkeys(operator.store.bins[bin], 2))
    left = dict(operator.store.take(bin).pairs)
    operator.checkpoint(1, 5, 0)
    operator.store.install(bin, left)
    operator.journal.write(all=True)
    written = {key for block in operator.written[1] for key in keys_of(block)}
    assert left and operator.complete == [0, 1] and not written.intersection(left)


def test_a_key_that_was_gone_at_a_cut_is_written_as_gone_though_its_bin_brings_it_back() -> None:
    operator, bin = Operator(), BINS - 1
    operator.apply(0, dict.fromkeys(range(400), 1))
    operator.checkpoint(0, 1, None)
    operator.journal.write(all=True)
    key = next(iter(operator.store.bins[bin]))
    operator.apply(1, {key: None})
    operator.checkpoint(1, 5, 0)
    left = dict(operator.store.take(bin).pairs)
    operator.store.install(bin, left | {key: 2})
    operator.journal.write(all=True)
    assert operator.states(1) == dict.fromkeys({*range(400)} - {key}, 1)


def test_a_key_is_written_once_however_often_it_is_touched() -> None:
    operator = Operator()
    operator.apply(0, dict.fromkeys(range(1600), 0))
    operator.checkpoint(0, 1, None)
    for count in range(9):
        operator.apply(2 + count, {7: count, 8: count})
    operator.checkpoint(1, 20, 0)
    operator.journal.write(all=True)
    deltas = [key for block in operator.written[1] if block.kind is BlockKind.DELTA for key in keys_of(block)]
    assert sorted(deltas) == [7, 8]


def test_timers_come_back_in_the_order_in_which_they_were_set() -> None:
    operator = Operator()
    operator.checkpoint(0, 0, None)
    for number, time in enumerate([9, 7, 9, 7, 8]):
        timer = time, "key", f"{number}"
        operator.store.timers.add(time, operator.store.bin_of_key("key"), "key", timer[2])
        operator.journal.set_timer(operator.store.bin_of_key("key"), timer)
    operator.checkpoint(1, 1, 0)
    operator.journal.write(all=True)
    [timers] = operator.restored(1, 8).timers.values()
    assert timers == [(8, "key", "4"), (9, "key", "0"), (9, "key", "2")]


def test_states_of_others_are_not_decoded() -> None:
    operator = Operator()
    operator.checkpoint(0, 0, None)
    operator.apply(1, {"a": 1})
    operator.checkpoint(1, 2, 0)
    operator.journal.write(all=True)
    blocks = [Block(each.kind, each.operator, each.bin, each.count, each.keys, b"") for each in operator.written[1]]
    others = [bin for bin in range(BINS) if bin != stable_hash("a") >> 60]
    chain = [(0, operator.written[0]), (1, [each for each in blocks if each.kind is BlockKind.DELTA])]
    assert not any(restore(chain, "count", 2, operator.store.bin_of_key, others).states.values())

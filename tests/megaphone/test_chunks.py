"""Bins move whole, once, in bounded chunks. The new owner applies no record before they have arrived."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow import Map, Move
from megaflow.errors import CannotTravel
from megaflow.megaphone.base import chunks as chunking
from megaflow.megaphone.base.bins import BinStore, Taken
from megaflow.megaphone.base.chunks import CHUNK_BYTES, Chunk, Installer, chunks
from megaflow.megaphone.base.routing import initial_table
from megaflow.testing import EngineCluster
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.simulation.by_hand import ByHand, Histories, key_of, keys_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's, with three bins 0 and 3
KEY = key_of(0, BINS)


def started(workers: int = 2) -> tuple[Histories, ByHand]:
    histories = Histories(BINS)
    return histories, ByHand(histories.build, workers)


# Records and the state that they need ----------------------------------------------------------


def test_records_that_are_there_before_the_state_of_their_bin_wait_for_it() -> None:
    histories, hands = started()
    hands.records[0].send((KEY, "history"))
    hands.command(5, Move(0, 1))
    hands.advance_to(5)
    hands.held = [Lane.STATE]
    for records in hands.records:
        records.send((KEY, "at"))
        records.advance_to(8)
        records.send((KEY, "after"))
        records.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert hands.owned() == [[2], [1, 3]], "the bin is under way"
    assert [value for _, _, value in histories.applied] == ["history"]
    hands.held = ()
    hands.settle()
    assert [(worker, value) for worker, _, value in histories.applied[1:]] == [(1, "at")] * 2 + [(1, "after")] * 2
    assert hands.outputs[-1] == (8, (KEY, ("history", "at", "at", "after", "after")))
    hands.finish()


def test_records_wait_for_the_last_chunk_of_their_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 1)
    histories, hands = started()
    keys = keys_of(0, BINS, 5)
    hands.records[0].send_batch([(key, 0) for key in keys])
    hands.command(1, Move(0, 1))
    hands.advance_to(1)
    hands.held = [Lane.STATE]
    hands.records[1].send_batch([(key, 1) for key in keys])
    hands.advance_to(2)
    hands.settle()
    for _ in range(4):
        hands.deliver(0, 1, Lane.STATE)
        hands.settle()
        hands.deliver(1, 0, Lane.STATE)  # credit
        hands.settle()
        assert len(histories.applied) == 5
    hands.deliver(0, 1, Lane.STATE)
    hands.settle()
    assert [worker for worker, _, _ in histories.applied] == [0] * 5 + [1] * 5
    assert hands.outputs[5:] == [(1, (key, (0, 1))) for key in keys]
    hands.finish()


def test_an_empty_bin_moves_and_takes_its_first_record_at_the_new_owner() -> None:
    histories, hands = started()
    hands.command(5, Move(0, 1))
    hands.advance_to(5)
    hands.records[0].send((KEY, "first"))
    hands.finish()
    assert histories.where("first") == 1 and hands.outputs == [(5, (KEY, ("first",)))]
    (row,) = hands.workers[1].stateful[0].take_ledger()
    assert (row.bin, row.time, row.source, row.target, row.keys) == (0, 5, 0, 1, 0)


def test_a_key_forgotten_right_before_a_move_has_no_state_at_the_new_owner() -> None:
    _, hands = started()
    hands.records[0].send((KEY, "old"))
    hands.command(5, Move(0, 1))
    hands.advance_to(4)
    hands.records[0].send((KEY, "forget"))
    hands.advance_to(5)
    hands.records[0].send((KEY, "new"))
    hands.finish()
    assert [output for _, output in hands.outputs] == [(KEY, ("old",)), (KEY, "forgotten"), (KEY, ("new",))]
    (row,) = hands.workers[1].stateful[0].take_ledger()
    assert row.keys == 0


def test_a_key_that_the_new_owner_forgets_does_not_come_back_with_the_bin() -> None:
    _, hands = started()
    hands.command(5, Move(0, 1))
    hands.command(7, Move(0, 0))
    for time, value in [(1, "old"), (5, "forget"), (8, "new")]:
        hands.advance_to(time)
        hands.records[1].send((KEY, value))
    hands.finish()
    assert hands.outputs[-1] == (8, (KEY, ("new",)))


# Moves that cross ---------------------------------------------------------------------------


@pytest.mark.parametrize("owners", [(1, 2), (1, 0), (1, 0, 1, 0, 1), (1, 2, 1, 0), (2, 2, 0)])
def test_a_bin_that_is_moved_on_before_its_first_move_is_done_visits_each_owner(owners: tuple[int, ...]) -> None:
    histories, hands = started(3)
    hands.records[0].send((KEY, 0))
    for time, owner in enumerate(owners, 5):
        hands.command(time, Move(0, owner))
    for time in range(5, 5 + len(owners)):
        for records in hands.records:
            records.advance_to(time)
            records.send((KEY, time))
    hands.finish()
    visits = [0, *owners]
    expected = [(time, 0, visits[i], owner) for i, (time, owner) in enumerate(zip(range(5, 20), owners))]
    assert hands.moved() == [row for row in expected if row[2] != row[3]]
    assert {(worker, value) for worker, _, value in histories.applied[1:]} == {
        (owner, time) for time, owner in enumerate(owners, 5)
    }
    assert len(hands.outputs[-1][1][1]) == 1 + 3 * len(owners)


def test_a_bin_that_comes_home_brings_its_state_back_and_nothing_old_remains() -> None:
    _, hands = started()
    hands.records[0].send((KEY, "home"))
    hands.command(5, Move(0, 1))
    hands.command(6, Move(0, 0))
    hands.advance_to(5)
    hands.records[1].send((KEY, "away"))
    hands.advance_to(6)
    hands.records[1].send((KEY, "back"))
    hands.finish()
    assert hands.outputs[-1] == (6, (KEY, ("home", "away", "back")))
    assert [worker.stateful[0].keys() for worker in hands.workers] == [1, 0]


@pytest.mark.parametrize(
    ("workers", "table"),
    [(2, (1, 0, 1, 0)), (4, (1, 2, 3, 0)), (4, (3, 0, 1, 2)), (3, (2, 2, 0, 1)), (8, (7, 6, 5, 4))],
    ids=["swap", "ring", "ring the other way", "more than one each", "fewer bins than workers"],
)
def test_all_bins_change_places_at_one_time(workers: int, table: tuple[int, ...]) -> None:
    histories, hands = started(workers)
    keys = [key_of(bin, BINS) for bin in range(BINS)]
    hands.records[0].send_batch([(key, 0) for key in keys])
    hands.command(1, Map(table))
    hands.advance_to(1)
    hands.records[workers - 1].send_batch([(key, 1) for key in keys])
    hands.finish()
    before = initial_table(BINS, range(workers))
    assert hands.moved() == [
        (1, bin, before[bin], owner) for bin, owner in sorted(enumerate(table), key=lambda each: each[1])
    ]
    assert {key: worker for worker, key, value in histories.applied if value == 1} == dict(zip(keys, table))
    assert sorted(hands.outputs[BINS:]) == sorted((1, (key, (0, 1))) for key in keys)


@pytest.mark.parametrize("seed", range(20))
def test_bins_move_and_the_stream_ends_when_only_frontiers_move(seed: int) -> None:
    cluster = EngineCluster(seed, 3)
    outputs = cluster.run(
        Histories(BINS).build,
        {0: [(0, (KEY, 0))]},
        [(5, Move(0, 2)), (6, Map((2, 2, 2, 2))), (9, Map((0, 1, 2, 0)))],
    )
    assert outputs == [(0, (KEY, (0,)))]
    assert [worker.stateful[0].owned() for worker in cluster.workers] == [[0, 3], [1], [2]]
    assert not any(worker.installed_dataflows for worker in cluster.workers)


@pytest.mark.parametrize("seed", range(10))
def test_a_single_worker_obeys_commands_that_can_move_nothing(seed: int) -> None:
    cluster = EngineCluster(seed, 1)
    outputs = cluster.run(Histories(BINS).build, {0: [(0, (KEY, 0)), (3, (KEY, 3))]}, [(2, Map((0,) * BINS))])
    assert outputs == [(0, (KEY, (0,))), (3, (KEY, (0, 3)))]


# Chunks ----------------------------------------------------------------------------------------


def items(runs: list[bytes]) -> list[Any]:
    """Return what these runs encode, one after the other."""
    return [item for run in runs for item in decode(run)]


def test_a_bin_larger_than_a_chunk_travels_in_several_and_is_one_row_of_the_ledger() -> None:
    _, hands = started()
    keys = keys_of(0, BINS, 40)
    hands.records[0].send_batch([(key, key * 20_000) for key in keys])
    hands.command(1, Move(0, 1))
    hands.advance_to(1)
    hands.records[1].send_batch([(key, "last") for key in keys])
    hands.finish()
    parcels = [batch for source, _, lane, _, batch in hands.delivered if (source, lane) == (0, Lane.STATE)]
    sent = [chunk for parcel in parcels for chunk in parcel]
    assert len(sent) > 2 and [key for chunk in sent for key, _ in items(chunk.pairs)] == keys
    assert [chunk.first for chunk in sent] == [True] + [False] * (len(sent) - 1)
    assert [chunk.last for chunk in sent] == [False] * (len(sent) - 1) + [True]
    (row,) = hands.workers[1].stateful[0].take_ledger()
    assert row.keys == 40 and row.bytes == sum(chunk.size for chunk in sent)
    assert row.bytes == pytest.approx(sum(len(encode(items(chunk.pairs))) for chunk in sent), rel=0.01)
    assert hands.outputs[40:] == [(1, (key, (key * 20_000, "last"))) for key in keys]


@pytest.mark.parametrize("length", [1, 1_000, 100_000, 400_000])
def test_a_chunk_is_hardly_larger_than_it_should_be_however_large_the_states(length: int) -> None:
    pairs = [(f"key{number}", "x" * length) for number in range(12_000_000 // (length + 10))]
    cut = list(chunks(3, Taken(list(pairs), []), 0, 0.0))
    assert [pair for chunk in cut for pair in items(chunk.pairs)] == pairs
    assert max(len(encode(chunk.pairs)) for chunk in cut) <= 1.15 * CHUNK_BYTES + length
    assert len(cut) <= 13 + 12_000_000 // CHUNK_BYTES or length == 400_000


def test_states_that_grow_large_late_in_a_bin_are_cut_soon() -> None:
    pairs = [(number, b"") for number in range(2_000)] + [(number, b"x" * 100_000) for number in range(2_000, 2_100)]
    sizes = [len(encode(chunk.pairs)) for chunk in chunks(3, Taken(pairs, []), 0, 0.0)]
    assert max(sizes[1:]) < 1.2 * CHUNK_BYTES, sizes


def test_a_bin_is_given_up_as_its_chunks_are_taken() -> None:
    store = BinStore(1)
    store.install(0, [(number, b"x" * 10_000) for number in range(500)])
    cut = chunks(0, store.take(0), 0, 0.0)
    left = [len(store.states)]
    for chunk in cut:
        left.append(len(store.states))
        assert chunk.last or left[-1] >= left[-2] - 1.4 * CHUNK_BYTES / 10_000
    assert left[0] == 500 and len(left) > 4, "nothing is measured before a chunk is asked for"
    assert left == sorted(left, reverse=True) and left[-1] == 0


@given(
    pairs=st.lists(st.tuples(st.integers(), st.text(max_size=60)), max_size=40),
    timers=st.lists(st.tuples(st.integers(0, 9), st.integers(), st.text(max_size=60)), max_size=40),
    chunk_bytes=st.sampled_from([1, 50, 400]),
)
def test_chunks_put_together_are_the_bin_and_each_is_bounded_over_pairs_and_timers(
    pairs: list[Any], timers: list[Any], chunk_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunking, "CHUNK_BYTES", chunk_bytes)
        cut = list(chunks(3, Taken(list(pairs), list(timers)), 0, 0.0))
    assert [pair for chunk in cut for pair in items(chunk.pairs)] == pairs
    assert [timer for chunk in cut for timer in items(chunk.timers)] == timers
    assert [chunk.first for chunk in cut] == [True] + [False] * (len(cut) - 1)
    assert [chunk.last for chunk in cut] == [False] * (len(cut) - 1) + [True]
    assert all(chunk.pairs or chunk.timers for chunk in cut) or (len(cut) == 1 and not pairs and not timers)
    largest = max((len(encode(item)) for item in [*pairs, *timers]), default=0)
    assert all(chunk.size < 2 * chunk_bytes + 2 * largest + 20 for chunk in cut)


def test_a_chunk_is_measured_when_it_is_asked_for() -> None:
    pairs = [(number, "x" * 100_000) for number in range(100)]
    unending = Taken(pairs, [(1, "key", object())])  # the last would raise CannotTravel
    asked = chunks(3, unending, 0, 0.0)
    assert not next(asked).last and not next(asked).last
    with pytest.raises(CannotTravel):
        list(asked)


def test_an_empty_bin_is_one_chunk() -> None:
    assert list(chunks(3, Taken([], []), 7, 1.5)) == [Chunk(3, 7, True, True, 1.5, 0, 0, [], [])]


def test_a_bin_that_stops_halfway_is_in_no_ledger_and_one_out_of_order_is_a_bug() -> None:
    installer = Installer(BinStore(BINS), 1, lambda: 3.5, lambda time, chunk: None)
    first = Chunk(0, 0, True, False, 1.0, 9, 1, [encode([(KEY, 1)])], [])
    second = Chunk(0, 0, False, True, 1.0, 0, 0, [], [])
    with pytest.raises(AssertionError, match="in order"):
        installer.install(5, second)
    installer.install(5, first)
    assert not installer.ledger
    with pytest.raises(AssertionError, match="in order"):
        installer.install(5, first)
    installer.install(5, second)
    (row,) = installer.ledger
    assert (row.keys, row.seconds, row.source, row.target) == (1, 2.5, 0, 1)


def test_a_clock_that_is_behind_that_of_the_sender_gives_no_negative_duration() -> None:
    installer = Installer(BinStore(BINS), 1, lambda: 0.5, lambda time, chunk: None)
    installer.install(5, Chunk(0, 0, True, True, 1.0, 0, 0, [], []))
    assert installer.ledger[0].seconds == 0.0


def test_what_moves_arrives_as_it_was() -> None:
    state: dict[Any, Any] = {"set": {1, 2}, "tuple": (1, [2.5, None]), 7: {"deep": b"bytes"}, True: 1 << 80}

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(
            lambda key, value, held: (held or state, [(worker.index, held)]), control=commands, bins=BINS
        )

    hands = ByHand(build, 2)
    hands.records[0].send((KEY, 0))
    hands.command(1, Move(0, 1))
    hands.advance_to(1)
    hands.records[0].send((KEY, 1))
    hands.finish()
    assert hands.outputs == [(0, (0, None)), (1, (1, state))]
    assert repr(hands.outputs[1][1][1]) == repr(state)

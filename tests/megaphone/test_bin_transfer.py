"""Bins leave in parcels, one at a time per new owner. Senders of parcels and credit hold capabilities."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow import Map, Move
from megaflow.megaphone.base import chunks as chunking
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.chunks import CHUNK_BYTES, Chunk, Freight
from megaflow.megaphone.router.bin_transfer import Credit, Shipper
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.simulation import parcels
from tests.simulation.by_hand import ByHand, Histories, keys_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's, with three bins 0 and 3
KEYS = 5


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each key a chunk."""
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 1)


def started(workers: int = 2) -> tuple[Histories, ByHand]:
    """Gives each bin five keys."""
    histories = Histories(BINS)
    hands = ByHand(histories.build, workers)
    parcels.watch(hands.network, "by hand")
    hands.records[0].send_batch([(key, 0) for bin in range(BINS) for key in keys_of(bin, BINS, KEYS)])
    return histories, hands


def held(hands: ByHand, output: str) -> list[int]:
    """Return the workers that hold a capability of F's output."""
    number = {"state": 1, "routing": 2}[output]
    holding = []
    for worker in hands.workers:
        for graph in worker.graphs():
            [router] = [node for node in graph.nodes if node.name == "histories.route"]
            held = graph.progress.caster.capabilities()
            if any(place == router.sources[number] and count for (place, _), count in held):
                holding.append(worker.index)
    return holding


def parcel_keys(hands: ByHand) -> list[list[tuple[int, Any]]]:
    """Return the (target, key) pairs of each parcel that has arrived."""
    return [
        [(target, key) for chunk in batch for run in chunk.pairs for key, _ in decode(run)]
        for _, target, lane, _, batch in hands.delivered
        if lane is Lane.STATE and isinstance(batch[0], Chunk)
    ]


# One parcel at a time ---------------------------------------------------------------------------


def test_each_new_owner_has_one_parcel_under_way_and_gets_the_next_when_that_is_installed(small_chunks: None) -> None:
    _, hands = started(3)
    hands.command(1, Map((1, 1, 2, 2)))  # 0 ─▶ 1 and 3: 0 ─▶ 2
    hands.held = [Lane.STATE]
    hands.advance_to(2)
    hands.settle()
    assert sorted(hands.waiting(Lane.STATE)) == [(0, 1), (0, 2)]
    for _ in range(KEYS - 1):
        hands.deliver(0, 2, Lane.STATE)
        hands.settle()
        assert sorted(hands.waiting(Lane.STATE)) == [(0, 1), (2, 0)], "a parcel that nobody takes, and credit"
        hands.deliver(2, 0, Lane.STATE)
        hands.settle()
        assert sorted(hands.waiting(Lane.STATE)) == [(0, 1), (0, 2)], "the next one, though worker 1 has none yet"
    hands.deliver(0, 2, Lane.STATE)
    hands.settle()
    assert hands.waiting(Lane.STATE) == [(0, 1)], "no credit is due for the last one"
    hands.finish()
    assert [len(parcel) for parcel in parcel_keys(hands)] == [1] * 2 * KEYS
    assert hands.moved() == [(1, 0, 0, 1), (1, 3, 0, 2)]


def test_bins_that_fit_into_a_chunk_together_are_one_parcel_and_need_no_credit() -> None:
    _, hands = started()
    hands.command(1, Map((1, 1, 1, 1)))
    hands.finish()
    assert parcel_keys(hands) == [[(1, key) for bin in (0, 2) for key in keys_of(bin, BINS, KEYS)]]
    assert not [lane for source, _, lane, _, _ in hands.delivered if (source, lane) == (1, Lane.STATE)]
    assert hands.moved() == [(1, 0, 0, 1), (1, 2, 0, 1)]


def test_a_bin_lies_at_its_old_owner_until_its_turn_comes_and_nothing_is_applied_to_it(small_chunks: None) -> None:
    histories, hands = started()
    hands.command(1, Map((1, 1, 1, 1)))
    hands.advance_to(1)
    for records in hands.records:
        records.send_batch([(key, 1) for bin in range(BINS) for key in keys_of(bin, BINS, KEYS)])
    hands.held = [Lane.STATE]
    hands.advance_to(2)
    hands.settle()
    owned = []
    while hands.waiting(Lane.STATE):
        owned.append(hands.owned())
        assert {value for _, _, value in histories.applied} == {0}
        hands.deliver(*hands.waiting(Lane.STATE)[0], Lane.STATE)
        hands.settle()
    assert owned[0] == [[2], [1, 3]] and [[2], [0, 1, 3]] in owned and [[], [0, 1, 3]] in owned
    hands.finish()
    assert {worker for worker, _, value in histories.applied if value == 1} == {1}
    assert sorted(outputs[1][1] for outputs in hands.outputs[-4 * KEYS :]) == [(0, 1, 1)] * 4 * KEYS


def test_bins_that_cross_and_bins_of_the_next_reconfiguration_find_their_way(small_chunks: None) -> None:
    _, hands = started(3)
    tables = [(0, 1, 2, 0), (1, 2, 0, 1), (2, 2, 2, 2), (0, 0, 1, 1)]
    for time, table in enumerate(tables[1:], 1):
        hands.command(time, Map(table))
    hands.advance_to(5)
    hands.records[1].send_batch([(key, 5) for bin in range(BINS) for key in keys_of(bin, BINS, KEYS)])
    hands.finish()
    assert hands.owned() == [[0, 1], [2, 3], []]
    assert {values for _, (_, values) in hands.outputs[-4 * KEYS :]} == {(0, 5)}
    assert len(hands.moved()) == 4 + 3 + 4


# Capabilities -----------------------------------------------------------------------------------


def test_a_source_holds_the_time_until_its_last_parcel_is_sent_and_a_target_until_all_is_whole(
    small_chunks: None,
) -> None:
    _, hands = started(3)
    hands.command(1, Move(0, 1))
    hands.settle()
    assert (held(hands, "state"), held(hands, "routing")) == ([0, 1, 2], [1]), "whoever may have to send or to thank"
    hands.held = [Lane.STATE]
    hands.advance_to(2)
    hands.settle()
    for _ in range(KEYS - 1):
        assert (held(hands, "state"), held(hands, "routing")) == ([0], [1])
        assert all(probe.less_equal(1) for probe in hands.probes)
        hands.deliver(0, 1, Lane.STATE)
        hands.settle()
        hands.deliver(1, 0, Lane.STATE)
        hands.settle()
    assert (held(hands, "state"), held(hands, "routing")) == ([], [1]), "the last one is under way"
    assert all(probe.less_equal(1) for probe in hands.probes)
    hands.deliver(0, 1, Lane.STATE)
    hands.settle()
    assert (held(hands, "state"), held(hands, "routing")) == ([], [])
    assert not any(probe.less_than(2) for probe in hands.probes)
    hands.finish()


def test_the_right_to_give_credit_goes_when_the_bin_goes_elsewhere_in_the_end() -> None:
    _, hands = started(3)
    hands.command(1, Move(0, 1), Move(0, 2), Move(1, 1))
    hands.settle()
    assert held(hands, "routing") == [1, 2]
    hands.held = [Lane.STATE]
    hands.advance_to(2)
    hands.settle()
    assert held(hands, "routing") == [2], "nothing comes to worker 1"
    hands.finish()


def test_a_target_that_is_slow_to_install_the_reconfiguration_gives_credit_before(small_chunks: None) -> None:
    """Its progress messages are late, so it does not know yet which bins move."""
    _, hands = started()
    hands.command(1, Move(0, 1))
    hands.settle()
    waiting = type(hands.network).waiting
    late = (0, 1, Lane.PROGRESS)
    hands.network.waiting = lambda: [each for each in waiting(hands.network) if each[0] != late]  # type: ignore[method-assign]
    hands.advance_to(2)
    hands.settle()
    assert hands.owned() == [[2], [0, 1, 3]] and hands.workers[1].stateful[0].table() == (0, 1, 0, 1)
    assert held(hands, "routing") == [1]
    del hands.network.waiting  # type: ignore[method-assign]
    hands.settle()
    assert hands.workers[1].stateful[0].table() == (1, 1, 0, 1) and held(hands, "routing") == []
    hands.finish()


def test_credit_may_come_late_but_chunks_that_nobody_expects_are_bugs() -> None:
    shipper = Shipper(BinStore(BINS), None, 0, lambda: 0.0)  # type: ignore[arg-type]
    shipper.credited(3, Credit(1))  # may come when all parcels are sent
    with pytest.raises(AssertionError, match="unexpected at 3"):
        shipper.installed(3, Chunk(0, 1, True, False, 0.0, 0, 0, [], [], awaited=True))
    with pytest.raises(AssertionError, match="came after the command"):
        shipper.ship(3, [(0, 0, 1)])


# Parcels ----------------------------------------------------------------------------------------


def chunk(bytes: int) -> Chunk:
    return Chunk(0, 0, False, False, 0.0, bytes, 1, [encode([(bytes, None)])], [])


EIGHTH = CHUNK_BYTES // 8


@given(
    sizes=st.lists(st.sampled_from([0, 1, EIGHTH // 3, EIGHTH // 2, EIGHTH, CHUNK_BYTES, 5 * CHUNK_BYTES]), min_size=1),
    turns=st.lists(st.booleans()),
)
def test_parcels_are_cut_small_and_under_way_are_a_chunk_of_them_or_one(sizes: list[int], turns: list[bool]) -> None:
    """`turns`: whether the new owner installs a chunk before the next parcel is made."""
    drawn = 0

    def drawing() -> Iterator[Chunk]:
        nonlocal drawn
        for size in sizes:
            drawn += 1
            yield chunk(size)

    freight, cut, under_way = Freight(drawing()), [], []
    for installs in chain(turns, repeat(True)):
        if under_way and installs:
            freight.installed()
            del under_way[0]
        while parcel := freight.pop():
            cut.append(parcel)
            under_way.append(sum(each.size for each in parcel))
            assert under_way[-1] <= EIGHTH or len(parcel) == 1
            assert len(under_way) == 1 or sum(under_way) <= CHUNK_BYTES
            assert drawn <= sum(map(len, cut)) + 1, "no more is taken out than is sent, but for the next"
        if freight.next is None:
            break
        assert under_way, "or it would wait for ever"
    together = [each for parcel in cut for each in parcel]
    assert [replace(each, awaited=False) for each in together] == [chunk(size) for size in sizes]
    assert [each.awaited for each in together] == [
        each is parcel[-1] and parcel is not cut[-1] for parcel in cut for each in parcel
    ]

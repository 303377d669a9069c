"""Distribute sends records unchanged to the owner of their bin at their time."""

from collections import Counter
from typing import Any

import pytest

from megaflow import Map, Move, stable_hash
from megaflow.errors import UsageError
from megaflow.megaphone.base.routing import apply, initial_table
from megaflow.testing import EngineCluster, Join, Leave
from tests.simulation.by_hand import ByHand, bin_of, key_of

BINS = 4
WORD = key_of(0, BINS)


def placed(hash: Any = stable_hash, **options: Any) -> Any:
    """A dataflow whose outputs name the worker on which each record came out."""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        there = records.distribute(hash, control=commands, bins=BINS, **options)
        return there.map(lambda record: (worker.index, record))

    return build


@pytest.mark.parametrize("seed", range(10))
def test_each_record_comes_out_once_at_its_time_on_the_owner_of_its_bin_then(seed: int) -> None:
    commands: list[tuple[int, Any]] = [(3, Move(0, 1)), (5, Map((2, 2, 2, 2))), (6, Move(0, 0)), (9, Move(1, 1))]
    feeds = {worker: [(time, f"word{time * worker % 7}") for time in range(12)] for worker in range(3)}
    outputs = EngineCluster(seed, 3).run(placed(), feeds, commands)
    table, expected = initial_table(BINS, range(3)), Counter[Any]()
    for time in range(12):
        table = apply(table, [command for at, command in commands if at == time])
        for feed in feeds.values():
            word = feed[time][1]
            expected[time, (table[bin_of(stable_hash(word), 2)], word)] += 1
    assert Counter(outputs) == expected


def test_records_need_be_neither_pairs_nor_hashable() -> None:
    records = [(0, {"id": number, "tags": ["a", number]}) for number in range(20)]
    outputs = EngineCluster(1, 2).run(placed(lambda record: record["id"]), {0: records})
    assert sorted((record["id"] for _, (_, record) in outputs)) == list(range(20))
    assert {worker for _, (worker, _) in outputs} == {0, 1}


def test_records_of_one_sender_and_bin_keep_their_order() -> None:
    outputs = EngineCluster(5, 2).run(placed(lambda number: 7), {0: [(0, number) for number in range(50)]})
    assert [number for _, (_, number) in outputs] == list(range(50))


def test_a_record_waits_for_control_to_pass_its_time_and_for_nothing_else() -> None:
    hands = ByHand(placed(), 2)
    hands.commands.advance_to(4)
    hands.records[0].advance_to(4)
    hands.records[0].send(WORD)
    hands.records[0].flush()
    hands.settle()
    assert hands.outputs == []
    hands.command(4, Move(0, 1))
    hands.settle()
    assert hands.outputs == [(4, (1, WORD))], "though worker 1 may still send at time 0"
    hands.finish()
    assert hands.moved() == [(4, 0, 0, 1)] and hands.workers[1].stateful[0].records == 1


def test_it_follows_the_workers_that_join_and_leave() -> None:
    cluster = EngineCluster(seed=2, workers=2)
    cluster.at(record=100, do=Join())
    cluster.at(record=300, do=Leave(2))
    numbers = [(time, number) for number, time in enumerate(sorted(list(range(100)) * 8))]
    outputs = cluster.run(placed(), {0: numbers})
    assert not cluster.refusals
    assert sorted(number for _, (_, number) in outputs) == list(range(800))
    assert {worker for _, (worker, _) in outputs} == {0, 1, 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hash_that_gives_no_int_is_named_on_a_lone_worker_too(workers: int) -> None:
    with pytest.raises(UsageError, match=r"hash\('a'\) gave 'a' of type str; it must give an int"):
        EngineCluster(1, workers).run(placed(lambda record: record), {0: [(0, "a")]})


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_users_hash_stays_as_it_is_with_the_record_in_its_note(workers: int) -> None:
    with pytest.raises(KeyError, match="id") as failure:
        EngineCluster(1, workers).run(placed(lambda record: record["id"]), {0: [(0, {"ID": 1})]})
    assert failure.value.__notes__[0].endswith("record {'ID': 1}")

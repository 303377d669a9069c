"""Building durable operators: refusals, and the capabilities for restored timers."""

from random import Random
from typing import Any

import pytest

from megaflow.durable.restored import Restored
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.snapshot.journal import LOOK_AGAIN, Noting, choose
from megaflow.scope import Scope
from megaflow.testing import Network, SimulatedCluster
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.membership import founding
from megaflow.timely.worker import Worker
from tests.simulation.by_hand import key_of

BINS = 4


def count(key: Any, one: int, total: int | None) -> Any:
    return (total or 0) + one, [(key, (total or 0) + one)]


def make_durable(stream: Any) -> Any:
    stream.port.scope.graph.extension(Durability).sink = lambda piece, block: None
    return stream


def run(dataflow: Any, lines: list[str]) -> list[Any]:
    return SimulatedCluster(seed=1, processes=1).run(dataflow, lines=lines)


def test_two_stateful_operators_of_one_name_cannot_be_durable() -> None:
    def dataflow(flow: Any) -> Any:
        words = make_durable(flow.lines()).map(lambda word: (word, 1))
        return words.stateful_state_machine(count, name="count").stateful_state_machine(count, name="count")

    with pytest.raises(BuildError, match=r"have the name .count.\. A job with --state .* name=.count_2. in the second"):
        run(dataflow, ["a"])


def test_an_operator_with_commands_of_its_own_cannot_be_durable() -> None:
    def dataflow(flow: Any) -> Any:
        words = make_durable(flow.lines()).map(lambda word: (word, 1))
        commands = flow.scope.to_stream([])
        return words.stateful_state_machine(count, control=commands, name="count")

    with pytest.raises(BuildError, match=r"count: it has its own control=, .* remove control="):
        run(dataflow, ["a"])


def test_the_flows_own_control_is_none_of_its_own_and_distribute_keeps_nothing() -> None:
    def dataflow(flow: Any) -> Any:
        words = make_durable(flow.lines()).map(lambda word: (word, 1))
        counts = words.stateful_state_machine(count, control=flow.control, name="count")
        return counts.distribute(name="count").distribute(name="count")

    assert run(dataflow, ["a", "a"]) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    "record, reason", [(7, "records must be"), (([], 1), "cannot be a key"), ((1, 2, 3), "must be")]
)
def test_what_is_no_pair_is_explained_in_a_durable_job_too(record: Any, reason: str) -> None:
    def dataflow(flow: Any) -> Any:
        return make_durable(flow.lines()).map(lambda line: record).stateful_state_machine(count, name="count")

    with pytest.raises(ProgramError, match=f"count: .*{reason}"):
        run(dataflow, ["a"])


def test_the_first_restored_timer_is_held_for_before_the_operator_has_run() -> None:
    worker: Worker[Scope] = Worker(Network(Random(0)).add(0, 0), founding((0,)), Scope, (lambda: 0.0, lambda: 0.0))
    records: InputHandle[Any] = InputHandle()
    fired = []

    def fold(key: Any, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        fired.append((time, key, values, state))
        return None, [key]

    first, second = key_of(0, BINS), key_of(3, BINS)
    with worker.dataflow("restored") as scope:
        durability = scope.ref.graph.extension(Durability)
        durability.sink = lambda piece, block: None
        durability.restore = lambda descriptor, bins: Restored(
            {0: {first: 5}, 3: {}}, {0: [(9, first, "over")], 3: [(7, second, "again"), (12, second, "end")]}
        )
        scope.input_from(records).stateful_unary(fold, bins=BINS, name="timed")
    [graph] = worker.graphs()
    [output] = [node for node in graph.nodes if node.name == "timed"]
    held = dict(graph.changes)
    assert held[output.sources[0], 7] == 1 and (output.sources[0], 9) not in held
    records.close()
    while worker.step():
        pass
    assert fired == [(7, second, ["again"], None), (9, first, ["over"], 5), (12, second, ["end"], None)]


def test_how_changes_are_noted_follows_what_the_last_interval_has_shown() -> None:
    assert choose(Noting.SPARSE, 0, touched=100, records=1000, keys=100) is Noting.YOUNG
    assert choose(Noting.YOUNG, 0, touched=300, records=1000, keys=1000) is Noting.SPARSE
    assert choose(Noting.SPARSE, 0, touched=400, records=1000, keys=1000) is Noting.DENSE
    assert choose(Noting.SPARSE, 0, touched=0, records=0, keys=1000) is Noting.SPARSE, "nothing was seen"
    dense = [choose(Noting.DENSE, cuts, 0, 1000, 1000) for cuts in range(LOOK_AGAIN + 1)]
    assert dense == [Noting.DENSE] * LOOK_AGAIN + [Noting.YOUNG]

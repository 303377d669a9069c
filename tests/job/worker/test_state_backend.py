"""A worker's operators begin with their states from the store. Its coordinator learns what must be written anew."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import DurableOperator
from megaflow.control.coordinator.base.job_state import Durable
from megaflow.durable.commits import Commit
from megaflow.durable.incarnation import DurablePart, begin
from megaflow.errors import ProgramError, StoreError
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.event_unit import NEVER
from megaflow.program import Worker
from megaflow.timely.dataflow.input_handle import InputHandle
from tests.durable.kept_operator import BINS, KeptOperator
from tests.job.by_hand import Clock, lone_worker

KEPT = KeptOperator(3)
CHECKPOINT = KEPT.commit.checkpoint


def keep(key: Any, time: Any, values: Any, state: Any, timers: Any) -> Any:
    return state, []


def begun(names: str = "count", more: tuple[Any, Any] = ((), ()), **terms: Any) -> tuple[Any, Durable]:
    """Return the initial states of the operators, and the report to the coordinator, in a new incarnation."""
    worker, kept = built(names, more, **terms)
    return {view.name: view.store.states for view in worker.stateful}, kept.durable(begins=True)  # type: ignore[attr-defined]


def built(
    names: str, more: tuple[Any, Any] = ((), ()), commit: Commit = KEPT.commit, **terms: Any
) -> tuple[Worker, StateBackend]:
    """Return a worker with these operators, which resume from a commit."""
    incarnation = begin(KEPT.store, "app")
    number = incarnation.commit(replace(commit, app="app")).number
    worker: Worker = lone_worker(Clock())
    kept = StateBackend(worker, DurablePart("", 2, number, 1.0, *more), lambda folder: KEPT.store)
    records: InputHandle[Any] = InputHandle()
    with worker.dataflow("app") as scope:
        kept.equip(scope.ref.graph.extension(Durability))
        for name in names.split():
            terms = {"bins": BINS, "version": 3} | terms
            scope.input_from(records).stateful_unary(keep, name=name, **terms)
    return worker, kept


def test_operators_begin_with_the_watermark_and_the_clock_of_the_commit() -> None:
    told = replace(KEPT.commit, watermark=7, clock=9)
    assert built("count", commit=told)[1].event_time() == (7, 9)
    assert built("count")[1].event_time() == (NEVER, 0), "there was none"
    assert built("count", commit=replace(told, checkpoint=0, operators=(), segments=()))[1].event_time() == (
        NEVER,
        NEVER,
    ), "nothing was committed"


def test_a_part_without_a_commit_reads_nothing_of_the_store() -> None:
    part = DurablePart("", 2, None, 1.0)
    kept = StateBackend(lone_worker(Clock()), part, lambda folder: KEPT.store)
    assert (kept.event_time(), kept.tokens(), list(kept.restaged())) == ((NEVER, NEVER), (0, ()), [])
    durability = Durability()
    kept.equip(durability)
    assert durability.restore is None, "what its operators begin with comes with the bins"


def test_the_bins_that_were_written_whole_longest_ago_have_the_first_turn() -> None:
    (cut,) = KEPT.commit.operators
    bases = (*cut.bases[:-2], cut.bases[-1] - 1, cut.bases[-1])  # type: ignore[operator]
    older = replace(KEPT.commit, operators=(replace(cut, bases=bases),))
    for bins, first in ((BINS, BINS - 2), (4, 0)):  # the latter are others than those of the store
        (view,) = built("count", commit=older, bins=bins)[0].stateful
        due = view.journal.bases.due(1, is_idle=False)  # the latter differ from those of the store
        assert next(iter(due)) == first


def test_an_operator_goes_on_and_a_new_one_begins_with_nothing() -> None:
    states, durable = begun("count new")
    assert states == {"count": KEPT.states, "new": {}}
    operators = DurableOperator("count", BINS, 3), DurableOperator("new", BINS, 3)
    at = CHECKPOINT, KEPT.commit.time, KEPT.commit.next_worker
    assert durable == Durable(operators, 1.0, *at, whole=True, table=(0,) * BINS)


def test_whatever_has_changed_has_the_first_checkpoint_follow_none() -> None:
    states, durable = begun("counts", ((("count", "counts"),), ()))
    assert states == {"counts": KEPT.states} and durable.whole and durable.committed == CHECKPOINT
    assert begun("new", ((), ("count",)))[0] == {"new": {}} and begun("new", ((), ("count",)))[1].whole
    states, durable = begun(version=4, upgrade=lambda key, state, version: [state])
    assert states["count"] == {key: [state] for key, state in KEPT.states.items()} and durable.whole
    assert begun(bins=4)[0]["count"] == KEPT.states and begun(bins=4)[1].whole
    states, durable = begun(hash=lambda key: len(key), rehash=True)
    assert states["count"] == KEPT.states and durable.whole


def test_what_cannot_go_on_is_refused() -> None:
    with pytest.raises(StoreError, match="but the program has no such operator; did you mean 'cuont'"):
        begun("cuont")
    with pytest.raises(StoreError, match="of version 3, but the program has version 2: run the newer program"):
        begun(version=2)
    with pytest.raises(StoreError, match="give upgrade=f"):
        begun(version=4)
    with pytest.raises(StoreError, match=r"operator 'count' had key 'k\d+' in bin .*: give the old hash= again"):
        begun(hash=lambda key: len(key))
    with pytest.raises(ProgramError, match=r"operator 'count': upgrade.* raised KeyError: 1, for key 'k"):
        begun(version=4, upgrade=lambda key, state, version: {}[1])

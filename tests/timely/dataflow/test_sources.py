"""Sources: iterables, and operators without inputs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import BuildError
from megaflow.program import Worker
from megaflow.timely import Capability, OperatorInfo, ProbeHandle, example
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.workers import EVERY, by_hand, run


def test_to_stream_shows_its_records_in_order() -> None:  # engine case 1
    seen: list[int] = []
    example(lambda scope: scope.to_stream(range(10)).inspect(seen.append))
    assert seen == list(range(10))


@pytest.mark.parametrize("workers", EVERY)
def test_each_worker_sends_its_own_iterable(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream([worker.index]).broadcast().capture()

    assert run(workers, main) == [[(0, list(range(workers)))]] * workers


@pytest.mark.parametrize("workers", EVERY)
def test_an_empty_iterable_is_a_stream_that_ends(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream([]).concat(scope.empty()).exchange(lambda x: x).capture()

    assert run(workers, main) == [[]] * workers


@pytest.mark.parametrize("count", [1, BATCH_RECORDS - 1, BATCH_RECORDS, BATCH_RECORDS + 1, 40 * BATCH_RECORDS])
def test_an_iterable_of_any_length_arrives_whole(count: int) -> None:
    [(time, records)] = example(lambda scope: scope.to_stream(iter(range(count))).capture())
    assert (time, records) == (0, list(range(count)))


def test_an_iterable_is_read_bit_by_bit() -> None:
    _, worker = by_hand()
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield len(read)

    probe = ProbeHandle()
    with worker.dataflow() as scope:
        scope.to_stream(endless()).probe_with(probe)
    assert not read
    worker.step()
    first = len(read)
    assert 0 < first < 100_000
    worker.step()
    assert len(read) == 2 * first
    assert not probe.done()


def test_a_generator_that_raises_names_the_operator_and_loses_no_traceback() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("the third line")

    with pytest.raises(KeyError, match="the third line") as caught:
        example(lambda scope: scope.to_stream(broken()).map(abs))
    [note] = caught.value.__notes__
    assert note.startswith("in operator 'ToStream'") and __file__ in note and "worker 0" in note
    assert caught.traceback[-1].name == "broken"


def test_what_is_no_iterable_is_refused_while_building() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        example(lambda scope: scope.to_stream(3))  # type: ignore[arg-type]


def ticking(times: int) -> Callable[[Capability, OperatorInfo], Callable[[Any], None]]:
    """A source of 0, 1, … each at its own time, one a run, that asks to be run again."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any], None]:
        def logic(output: Any) -> None:
            with output.session(capability) as session:
                session.give((info.worker, capability.time))
            if capability.time == times - 1:
                capability.release()
            else:
                assert isinstance(capability.time, int)
                capability.downgrade(capability.time + 1)
                info.activator.activate()

        return logic

    return build


@pytest.mark.parametrize("workers", EVERY)
def test_a_source_runs_at_the_start_and_when_it_asks_to(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.source("Ticks", ticking(5)).capture()

    assert run(workers, main) == [[(time, [(index, time)]) for time in range(5)] for index in range(workers)]


def test_a_source_that_holds_its_capability_keeps_the_stream_open() -> None:
    hand, worker = by_hand()
    held: list[Capability] = []
    with worker.dataflow() as scope:
        probe = scope.source("Mine", lambda capability, info: held.append(capability) or (lambda output: None)).probe()
    hand.settle()
    assert worker.installed_dataflows and not probe.done()
    held[0].release()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_a_source_must_give_its_logic() -> None:
    with pytest.raises(BuildError, match=r"Mine \(.*test_sources.py:\d+\): build returned None, a NoneType; it must"):
        example(lambda scope: scope.source("Mine", lambda capability, info: None))  # type: ignore[arg-type,return-value]

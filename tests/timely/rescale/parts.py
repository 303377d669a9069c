"""Dataflow for tests of rescaling: each number goes to the worker that it belongs to."""

from dataclasses import dataclass

from megaflow.program import Worker
from megaflow.timely import InputHandle, ProbeHandle
from tests.timely.rescale.by_hand import Hands


@dataclass
class Part:
    """One worker's part of the dataflow."""

    numbers: InputHandle[int]
    probe: ProbeHandle
    seen: list[int]


def hello(worker: Worker, name: str = "hello") -> Part:
    """Build the dataflow on a worker."""
    seen: list[int] = []
    numbers: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    with worker.dataflow(name) as scope:
        scope.input_from(numbers).exchange(lambda x: x).inspect(seen.append).probe_with(probe)
    return Part(numbers, probe, seen)


def close(hands: Hands, *parts: Part) -> None:
    """Close all inputs; the dataflows must complete everywhere."""
    for part in parts:
        part.numbers.close()
    hands.settle()
    assert hands.done(), hands.pointstamps()


def begin(hands: Hands, server: int | None = None, port: int = 1000) -> tuple[Worker, Part]:
    """Start a joiner that has built its part and asked for the snapshot. Nothing has been answered yet."""
    [joiner] = hands.start(hands.admitted(server, port=port))
    part = hello(joiner)
    assert joiner.rescaling.joiner is not None
    joiner.rescaling.joiner.begin()
    return joiner, part

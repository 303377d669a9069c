"""Shared parts of the engine's acceptance cases: their inputs, and threads to run them on."""

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from megaflow.program import Worker, execute
from megaflow.timely.runtime import Config
from tests.timely.workers import numbers

R = TypeVar("R")

def run_threads(workers: int, main: Callable[[Worker], R], *args: str) -> list[R]:
    """Run `main` on `workers` threads of this process; return their results."""
    return execute(Config.process(workers), main, args)


def edges(nodes: int, count: int) -> list[tuple[int, int]]:
    """Return `edges(n, m)` of the cases: m pairs of numbers below n, in the order in which they are drawn."""
    drawn = numbers()
    return [(source % nodes, target % nodes) for source, target in islice(zip(drawn, drawn), count)]


def taking(capability: Any, info: Any) -> Any:
    """Logic of an operator that passes everything on and never asks whether there is room."""
    capability.release()

    def logic(source: Any, output: Any) -> None:
        for reference, batch in source:
            output.session(reference).give_batch(batch)

    return logic

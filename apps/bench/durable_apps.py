"""Programs of `durable_restart`: one count for each number. They emit a count from a number's second line on."""

from typing import Any

from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream


def count(key: int, one: int, total: int | None) -> tuple[int, list[Any]]:
    """Make the state of a number an int."""
    return (total or 0) + one, [] if total is None else [(key, total + one)]


def note(key: int, one: int, seen: dict[str, Any] | None) -> tuple[dict[str, Any], list[Any]]:
    """Make the state of a number a dict of three entries."""
    if seen is None:
        return {"first": key, "count": one, "word": str(key)}, []
    seen["count"] += one
    return seen, [(key, seen["count"])]


def ints(flow: Flow) -> Stream[Any]:
    """Count a million numbers, each in an int."""
    return flow.lines().map(lambda line: (int(line), 1)).stateful_state_machine(count)


def dicts(flow: Flow) -> Stream[Any]:
    """Count a million numbers, each in a dict."""
    return flow.lines().map(lambda line: (int(line), 1)).stateful_state_machine(note)

"""What `durable_restart` runs: one count for each number, which is told from its second line on."""

from typing import Any

from megaflow.job.worker.flow import Flow
from megaflow.stream import Stream


def count(key: int, one: int, total: int | None) -> tuple[int, list[Any]]:
    """Keep an int."""
    return (total or 0) + one, [] if total is None else [(key, total + one)]


def note(key: int, one: int, seen: dict[str, Any] | None) -> tuple[dict[str, Any], list[Any]]:
    """Keep a dict of three."""
    if seen is None:
        return {"first": key, "count": one, "word": str(key)}, []
    seen["count"] += one
    return seen, [(key, seen["count"])]


def ints(flow: Flow) -> Stream[Any]:
    """Have a million ints, one for each number."""
    return flow.lines().map(lambda line: (int(line), 1)).stateful_state_machine(count)


def dicts(flow: Flow) -> Stream[Any]:
    """Have a million dicts."""
    return flow.lines().map(lambda line: (int(line), 1)).stateful_state_machine(note)

"""What holds a job's output back, as one plain record, the same for a screen and for `--json`."""

from collections.abc import Iterable
from typing import Any

from megaflow.control.coordinator.controller import LAG_EPOCHS
from megaflow.timely.explain import Holding


def is_settled(epoch: int, frontier: int | None, ended: bool) -> bool:
    """Tell whether the output is as far as it can be: all before `frontier` is complete, control is at `epoch`.

    `ended`: control is closed, so that all of the output should be complete.

    >>> is_settled(100, 98, False), is_settled(100, 42, False), is_settled(100, 98, True), is_settled(100, None, True)
    (True, False, False, True)
    """
    return frontier is None or (not ended and epoch - frontier <= LAG_EPOCHS)


def explanation_record(
    job: str,
    epoch: int,
    frontier: int | None,
    settled: bool,
    holdings: Iterable[Holding] = (),
    silent: Iterable[int] = (),
) -> dict[str, Any]:
    """Return the record that `megaflow control explain --json` prints.

    `held_by` is what keeps epoch `frontier` open, by the answers of all workers but the `silent` ones; it is empty
    if the output is settled.
    """
    return {
        "job": job,
        "epoch": epoch,
        "frontier": frontier,
        "settled": settled,
        "held_by": [holding_record(each) for each in holdings],
        "silent": sorted(silent),
    }


def holding_record(holding: Holding) -> dict[str, Any]:
    """Return one part of it; a worker of None is on the way between two."""
    return {
        "operator": holding.operator,
        "where": holding.where,
        "port": holding.port,
        "worker": holding.worker,
        "epoch": holding.time if isinstance(holding.time, int) else list(holding.time),
        "count": holding.count,
        "kind": holding.kind,
    }

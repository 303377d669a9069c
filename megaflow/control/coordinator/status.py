"""The loads of a job's operators, added up from what its workers report.

A bin that has moved a moment ago has a share of its load at either worker: the shares are added, whoever owns it now.
"""

from collections.abc import Iterable, Mapping, Sequence

from megaflow.control.messages import StatusAnswer
from megaflow.control.reports import KEYS_REPORTED_MAX, OperatorLoad, OperatorStatus


def operator_statuses(
    answers: Iterable[StatusAnswer], operators: Mapping[str, int], table: Sequence[int] | None
) -> tuple[OperatorStatus, ...]:
    """Return what a status shows of each operator (name -> number of bins); without a table if that is None."""
    parts: dict[str, list[OperatorLoad]] = {}
    for load in (load for answer in answers for load in answer.loads):
        parts.setdefault(load.operator, []).append(load)
    owners = None if table is None else tuple(table)
    return tuple(
        OperatorStatus(name, bins, owners, merged_load(parts[name]) if name in parts else None)
        for name, bins in operators.items()
    )


def merged_load(parts: Sequence[OperatorLoad]) -> OperatorLoad:
    """Return the load of one operator on all workers: bins by the time they take, keys by what is certain of them."""
    bins: dict[int, list[float]] = {}  # bin -> [records, busy ms, keys, bytes]
    hot: dict[tuple[str, int], list[float]] = {}  # (key, bin) -> [records, error]
    for part in parts:
        rows = zip(part.records_per_second, part.busy_ms_per_second, part.keys, part.bytes)
        for bin, row in zip(part.bins, rows):
            bins[bin] = [sum(pair) for pair in zip(bins.get(bin, (0.0, 0.0, 0, 0)), row)]
        for key, bin, records, error in part.hot_keys:
            before = hot.get((key, bin), (0.0, 0.0))
            hot[key, bin] = [before[0] + records, before[1] + error]
    busiest = sorted(bins.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))
    surest = sorted(hot.items(), key=lambda each: each[1][1] - each[1][0])[:KEYS_REPORTED_MAX]
    return OperatorLoad(
        parts[0].operator,
        tuple(bin for bin, _ in busiest),
        tuple(row[0] for _, row in busiest),
        tuple(row[1] for _, row in busiest),
        tuple(int(row[2]) for _, row in busiest),
        tuple(int(row[3]) for _, row in busiest),
        tuple((key, bin, records, error) for (key, bin), (records, error) in surest),
    )

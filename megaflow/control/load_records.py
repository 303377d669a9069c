"""The loads of a job's operators: what a worker says of its part, and what a status makes of all parts.

A bin that has moved a moment ago has a share of its load at either worker: the parts are added, whoever owns it now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from megaflow.control.messages import OperatorLoad, WorkerStatus
from megaflow.megaphone.load_meter import Load

BINS_REPORTED_MAX = 1 << 16  # of one operator on one worker, the heaviest
KEYS_REPORTED_MAX = 16  # of one operator, those that certainly have most records
KEY_LENGTH_MAX = 60  # characters that are shown


def operator_load(
    name: str, load: Load, keys: Mapping[int, int], sizes: Mapping[int, int], bin_of_key: Callable[[Any], int]
) -> OperatorLoad:
    """Return what a worker says of an operator: bins with records or keys, the busiest first.

    `keys` and `sizes` are those of the bins that are here, `bin_of_key` gives the bin of a key.
    """
    nothing = (0.0, 0.0)
    named = [bin for bin in load.bins.keys() | keys.keys() if bin in load.bins or keys[bin]]
    named.sort(key=lambda bin: (*(-figure for figure in reversed(load.bins.get(bin, nothing))), bin))
    bins = named[:BINS_REPORTED_MAX]
    return OperatorLoad(
        name,
        tuple(bins),
        tuple(load.bins.get(bin, nothing)[0] for bin in bins),
        tuple(load.bins.get(bin, nothing)[1] * 1000 for bin in bins),
        tuple(keys.get(bin, 0) for bin in bins),
        tuple(sizes.get(bin, 0) for bin in bins),
        tuple((shown(key), bin_of_key(key), records, error) for key, records, error in load.keys[:KEYS_REPORTED_MAX]),
    )


def shown(key: object) -> str:
    """Return what a key looks like.

    >>> shown("word"), len(shown("x" * 100))
    ("'word'", 60)
    """
    text = repr(key)
    return text if len(text) <= KEY_LENGTH_MAX else text[: KEY_LENGTH_MAX - 1] + "…"


def load_records(answers: Iterable[WorkerStatus], table: Sequence[int] | None) -> dict[str, dict[str, Any]]:
    """Return operator -> what a status shows of its load: `loads` by bin, busiest first, and `hot_keys`.

    Operators of which nothing was told have none.
    """
    by_bin: dict[str, dict[int, list[float]]] = {}  # operator -> bin -> [records, busy ms, keys, bytes]
    hot: dict[str, dict[tuple[str, int], list[float]]] = {}  # operator -> (key, bin) -> [records, error]
    for part in (part for answer in answers for part in answer.loads):
        bins = by_bin.setdefault(part.operator, {})
        rows = zip(part.records_per_second, part.busy_ms_per_second, part.keys, part.bytes)
        for bin, row in zip(part.bins, rows):
            bins[bin] = [sum(pair) for pair in zip(bins.get(bin, (0.0, 0.0, 0, 0)), row)]
        keys = hot.setdefault(part.operator, {})
        for key, bin, records, error in part.hot_keys:
            before = keys.get((key, bin), (0.0, 0.0))
            keys[key, bin] = [before[0] + records, before[1] + error]
    return {
        name: {"loads": _bin_records(bins, table), "hot_keys": _key_records(hot[name])}
        for name, bins in by_bin.items()
    }


def _bin_records(bins: Mapping[int, Sequence[float]], table: Sequence[int] | None) -> list[dict[str, Any]]:
    rows = sorted(bins.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))
    return [
        {"bin": bin, "owner": None if table is None else table[bin],
         "records_per_s": records, "busy_ms_per_s": busy, "keys": keys, "bytes": size}
        for bin, (records, busy, keys, size) in rows
    ]  # fmt: skip


def _key_records(keys: Mapping[tuple[str, int], Sequence[float]]) -> list[dict[str, Any]]:
    rows = sorted(keys.items(), key=lambda each: each[1][1] - each[1][0])  # by what is certain
    return [
        {"key": key, "bin": bin, "records_per_s": records, "error_per_s": error}
        for (key, bin), (records, error) in rows[:KEYS_REPORTED_MAX]
    ]


def weights(record: Mapping[str, Any]) -> list[float] | None:
    """Return the load of each bin by a status record with loads: busy time, or records if none was measured.

    The operators share one table, so their bins move together and count together. None: no load at all was measured.
    """
    bins = max((operator["bins"] for operator in record["operators"]), default=0)
    rows = [row for operator in record["operators"] for row in operator.get("loads", ())]
    for figure in ("busy_ms_per_s", "records_per_s"):
        loads = [0.0] * bins
        for row in rows:
            loads[row["bin"]] += row[figure]
        if any(loads):
            return loads
    return None

"""The parts that workers tell of a load become one: nothing is lost, whoever owns a bin by now."""

from typing import Any

from megaflow.control.load_records import BINS_REPORTED_MAX, KEYS_REPORTED_MAX, load_records, operator_load, weights
from megaflow.control.messages import OperatorLoad, WorkerStatus
from megaflow.megaphone.load_meter import Load
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode


def said(worker: int, *loads: OperatorLoad) -> WorkerStatus:
    return WorkerStatus(0, worker, 1, "h:1", 0, 0, 0.0, 0.0, 0.0, 0.0, {}, {}, (), loads)


def part(
    name: str, load: Load, keys: dict[int, int] | None = None, sizes: dict[int, int] | None = None
) -> OperatorLoad:
    return operator_load(name, load, keys or {}, sizes or {}, lambda key: len(str(key)))


def test_a_part_has_each_bin_with_records_or_keys_the_busiest_first_and_travels() -> None:
    load = Load({1: (5.0, 0.001), 2: (7.0, 0.25), 4: (9.0, 0.001)}, [("the", 5.0, 0.5), (17, 2.0, 0.0)])
    told = part("count", load, {1: 3, 2: 0, 5: 8, 6: 0}, {1: 30, 5: 80})
    assert told == OperatorLoad(
        "count", (2, 4, 1, 5), (7.0, 9.0, 5.0, 0.0), (250.0, 1.0, 1.0, 0.0), (0, 0, 3, 8), (0, 0, 30, 80),
        (("'the'", 3, 5.0, 0.5), ("17", 2, 2.0, 0.0)),
    )  # fmt: skip
    assert decode(encode(said(0, told))) == said(0, told)


def test_a_part_is_bounded_and_keeps_what_is_heaviest() -> None:
    bins = {bin: (1.0, float(bin)) for bin in range(BINS_REPORTED_MAX + 10)}
    told = part("count", Load(bins, [("x" * 1000, 1.0, 0.0)] * 100))
    assert len(told.bins) == BINS_REPORTED_MAX and told.bins[0] == BINS_REPORTED_MAX + 9 and 9 not in told.bins
    assert len(told.hot_keys) == KEYS_REPORTED_MAX and all(len(key) <= 60 for key, _, _, _ in told.hot_keys)


def test_the_parts_of_a_bin_that_has_moved_are_added() -> None:
    before = part("count", Load({3: (10.0, 0.5), 1: (1.0, 0.0)}, [("the", 8.0, 1.0)]), {1: 2}, {1: 20})
    after = part("count", Load({3: (4.0, 0.25)}, [("the", 4.0, 0.5), ("a", 1.0, 0.0)]), {3: 7}, {3: 70})
    other = part("other", Load({}, []), {0: 1}, {0: 5})
    records: dict[str, Any] = load_records([said(0, before, other), said(1, after)], (0, 0, 0, 1))
    assert records["count"]["loads"] == [
        {"bin": 3, "owner": 1, "records_per_s": 14.0, "busy_ms_per_s": 750.0, "keys": 7, "bytes": 70},
        {"bin": 1, "owner": 0, "records_per_s": 1.0, "busy_ms_per_s": 0.0, "keys": 2, "bytes": 20},
    ]
    assert records["count"]["hot_keys"] == [
        {"key": "'the'", "bin": 3, "records_per_s": 12.0, "error_per_s": 1.5},
        {"key": "'a'", "bin": 1, "records_per_s": 1.0, "error_per_s": 0.0},
    ]
    assert [row["bin"] for row in records["other"]["loads"]] == [0] and load_records([said(0)], None) == {}


def test_a_weight_is_the_busy_time_of_all_operators_or_their_records_or_nothing() -> None:
    def record(*figures: tuple[int, float, float]) -> dict[str, Any]:
        rows = [{"bin": bin, "records_per_s": records, "busy_ms_per_s": busy} for bin, records, busy in figures]
        return {"operators": [{"bins": 4, "loads": [row]} for row in rows]}

    assert weights(record((1, 5.0, 0.5), (1, 5.0, 1.0), (3, 9.0, 0.0))) == [0.0, 1.5, 0.0, 0.0]
    assert weights(record((1, 5.0, 0.0), (3, 9.0, 0.0))) == [0.0, 5.0, 0.0, 9.0]
    assert weights(record((1, 0.0, 0.0))) is None
    assert weights({"operators": [{"bins": 4}]}) is None and weights({"operators": []}) is None

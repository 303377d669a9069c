"""At each moment, a worker's time is charged to exactly one row. The work of its operators is counted."""

import json
import logging
import pstats
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.profile.ledger import BUILDING, ENGINE, PARKED, TRANSPORT, Ledger, Tally
from megaflow.job.profile.report import read_records
from megaflow.job.profile.worker_profile import Calls, Profile
from megaflow.job.spec import ProfileSpec
from megaflow.megaphone.base.bins import stable_hash
from megaflow.program import Worker, execute
from megaflow.timely.communication.channel import MAIL
from megaflow.timely.runtime import Config

MOVES = st.lists(st.tuples(st.sampled_from(["leave", "settle", *"abc"]), st.integers(0, 5)))


@given(MOVES)
def test_each_second_is_charged_to_the_row_that_is_on_top(moves: list[tuple[str, int]]) -> None:
    rows = {name: Tally("engine", name) for name in ("bottom", *"abc")}
    clock = [100.0]
    ledger = Ledger(rows["bottom"], lambda: clock[0])
    model, charged, entered = ["bottom"], dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
    for what, seconds in moves:
        charged[model[-1]] += seconds
        clock[0] += seconds
        if what in rows:
            ledger.enter(rows[what])
            model.append(what)
            entered[what] += 1
        elif what == "leave" and len(model) > 1:
            ledger.leave()
            model.pop()
        else:
            ledger.settle()
    assert {name: row.seconds for name, row in rows.items()} == charged
    assert {name: row.activations for name, row in rows.items()} == entered
    assert sum(row.seconds for row in rows.values()) == ledger.seconds == clock[0] - ledger.began


WORDS = [f"word{number}" for number in range(100)]


def count(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    total = (total or 0) + n
    return total, [(word, total)]


def build(scope: Any) -> Any:
    words = scope.to_stream(WORDS).exchange(stable_hash)
    return words.map(lambda word: (word, 1)).stateful_state_machine(count).probe()


def run(folder: Path, workers: int, build: Callable[[Any], Any], calls: bool = False) -> None:
    """Run a dataflow under a profile, each worker on a thread."""
    spec = ProfileSpec(str(folder), calls)
    profiles = {worker: Profile(worker, spec) for worker in range(workers)}

    def main(worker: Worker) -> None:
        profile = profiles[worker.index]
        with profile.measuring(worker):
            with profile.building(), worker.dataflow("words") as scope:
                probe = build(scope)
            step = profile.steering(lambda: None)
            while worker.step_or_park(step()) and not probe.done():
                pass

    config = replace(Config.process(workers), around=lambda end: profiles[end.index].around(end))
    execute(config, main)


@pytest.mark.about_fusion
def test_what_operators_did_is_counted_and_the_rows_sum_to_the_wall_time(tmp_path: Path) -> None:
    run(tmp_path, 2, build)
    records = read_records(tmp_path)
    assert [record.worker for record in records] == [0, 1] and all(record.ended for record in records)
    records_in: dict[str, int] = {}
    for record in records:
        assert sum(row.seconds for row in record.rows) == pytest.approx(record.seconds, rel=1e-9)
        assert all(row.seconds >= 0 for row in record.rows)
        assert record.processor_seconds > 0
        for row in record.rows:
            records_in[row.name] = records_in.get(row.name, 0) + row.records_in
            assert (row.activations > 0 and row.batches_in > 0) or row.records_in == 0
        engine = {row.name: row for row in record.rows if row.kind == "engine"}
        assert engine.keys() == ENGINE.keys()
        assert engine[BUILDING].activations == 1 and engine[TRANSPORT].activations > 0
    assert records_in["Exchange + Map"] == records_in["count"] == 200, "each worker has its own words"
    assert "Map" not in records_in, "what is fused has one row"
    [declared] = {row.where for record in records for row in record.rows if row.name == "Exchange + Map"}
    assert declared.startswith(f"{__file__}:")


def test_the_transport_that_an_operator_uses_is_no_time_of_the_operators(tmp_path: Path) -> None:
    class Slow:
        """An allocator whose clock advances only while it sends and waits."""

        index = 0

        def send(self, *_: Any) -> None:
            clock[0] += 10.0

        send_all = flush = receive = send

        def park(self, seconds: float | None) -> None:
            clock[0] += 100.0

    clock = [0.0]
    profile = Profile(0, ProfileSpec(str(tmp_path)))
    profile._ledger = Ledger(profile._engine["progress and scheduling"], lambda: clock[0])
    slow: Any = Slow()
    end: Any = profile.around(slow)
    row = Tally("operator", "Exchange")
    with profile._ledger.on(row):
        clock[0] += 1.0
        end.send(1, MAIL, "x")
        clock[0] += 1.0
    end.park(None)
    rows = {each.name: each.seconds for each in profile.record(ended=True).rows}
    assert (row.seconds, rows[TRANSPORT], rows[PARKED]) == (2.0, 10.0, 100.0)
    assert end.index == 0


def test_a_worker_that_fails_leaves_its_profile_too(tmp_path: Path) -> None:
    def fail(word: str) -> str:
        raise ValueError(word)

    with pytest.raises(ValueError, match="word0"):
        run(tmp_path, 1, lambda scope: scope.to_stream(WORDS).map(fail).probe())
    [record] = read_records(tmp_path)
    [failed] = [row for row in record.rows if row.name == "Map"]
    assert failed.activations == 1 and sum(row.seconds for row in record.rows) == pytest.approx(record.seconds)


def test_a_folder_that_is_gone_costs_the_profile_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "profile"

    def building(scope: Any) -> Any:
        shutil.rmtree(folder)
        return build(scope)

    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        run(folder, 1, building, calls=True)
    assert not folder.exists() and "cannot write its profile" in caplog.text


def test_the_functions_of_an_operator_are_those_that_it_called(tmp_path: Path) -> None:
    run(tmp_path, 1, build, calls=True)
    [record] = read_records(tmp_path)
    rows = {row.name: row for row in record.rows}
    calls = {name: sum(number for function, _, number, _, _ in row.calls if function == "count")
             for name, row in rows.items()}  # fmt: skip
    assert calls["count"] == 100 and sum(calls.values()) == 100
    assert (tmp_path / "worker-0.pstats").stat().st_size > 0


def test_a_look_at_a_worker_that_goes_on_is_a_whole_file(tmp_path: Path) -> None:
    profile = Profile(3, ProfileSpec(str(tmp_path)))
    assert profile.steering(lambda: 0.5)() == 0.5
    content = json.loads((tmp_path / "worker-3.json").read_text())
    assert content["worker"] == 3 and not content["ended"]
    assert content["rows"][0].keys() == asdict(Tally("engine", "x")).keys()
    assert [path.name for path in tmp_path.iterdir()] == ["worker-3.json"]


def shared(times: int) -> int:
    return sum(range(times))


def calls_of(functions: tuple[Any, ...]) -> int:
    return sum(calls for name, _, calls, _, _ in functions if name == "shared")


def test_a_shared_function_is_counted_where_it_was_called_from(tmp_path: Path) -> None:
    calls = Calls()
    calls.begin()
    shared(1)
    for key, number in (((0, 1), 2), ((0, 2), 3), ((0, 1), 4)):
        calls.enter(key)
        for _ in range(number):
            shared(1)
        calls.leave()
        shared(1)
    found = calls.end()
    assert {key: calls_of(functions) for key, functions in found.items()} == {None: 4, (0, 1): 6, (0, 2): 3}
    calls.dump(tmp_path / "all.pstats")
    stats: Any = pstats.Stats(str(tmp_path / "all.pstats"))
    assert [numbers[1] for (_, _, name), numbers in stats.stats.items() if name == "shared"] == [13]


def test_an_operator_that_never_stopped_is_kept() -> None:
    calls = Calls()
    calls.begin()
    calls.enter((0, 1))
    shared(1)
    assert calls_of(calls.end()[0, 1]) == 1

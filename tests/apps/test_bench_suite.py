"""The benchmark suite: its arithmetic is right, and its cheap workloads run and produce figures."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from apps.bench import durable_rates, durable_restart, encoding, latency, processor_time, rounds
from apps.bench.backpressure import drift
from apps.bench.random_keys import KEYS_QUICK, MEMORY, RATE, RECORDS_PER_KEY, write_numbers
from apps.bench.random_keys import steps as number_steps
from apps.bench.report import HELD, MISSED, UNKNOWN, Goal, Result, as_json, draw, judge, ratio, summary, text
from apps.bench.suite import WORKLOADS, carry_out, chosen
from apps.bench.wordcount import ONE, ORDERED, TWO
from apps.bench.workload import PLAIN, Absent, Setting, Step, Workload, WrongCounts, check_count, one, plain, run_json
from megaflow.timely import Config, execute
from tests.results import WrongResult, comparing

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = ROOT / "apps" / "bench" / "suite.py"
STALL_SECONDS = 0.2
FOUND = {
    "slow": {"rate": [1.0, 2.0, 1.0]},
    "middling": {"rate": [2.0, 4.0, 2.0]},
    "fast": {"rate": [4.0, 8.0, 4.0], "memory": [30.0, 10.0, 20.0]},
}


def suite(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, str(SUITE), "--folder", str(folder / "results"), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    with comparing():
        assert "WrongCounts" not in done.stderr, done.stderr
    return done


@contextmanager
def counting() -> Iterator[None]:
    """Raise `WrongResult` if a workload finds that its counts are wrong."""
    try:
        yield
    except WrongCounts as error:
        raise WrongResult(*error.args) from error


# Arithmetic


def test_a_ratio_is_the_median_of_the_ratios_of_neighbours() -> None:
    assert ratio([10.0, 2.0, 1.0], [20.0, 1.0, 4.0]) == 0.5  # that of medians is 2 / 4, of sums 13 / 25
    assert ratio([1.0, 9.0, 100.0], [1.0, 3.0, 1000.0]) == 1.0
    assert ratio([1.0], []) is None and ratio([1.0], [0.0]) is None


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal("fast", "memory", 20.0), 20.0, HELD),
        (Goal("fast", "memory", 19.9), 20.0, MISSED),
        (Goal("fast", "memory", 20.1, at_least=True), 20.0, MISSED),
        (Goal("fast", "rate", 2.0, at_least=True, of=("middling",)), 2.0, HELD),
        (Goal("fast", "rate", 3.0, at_least=True, of=("slow", "middling")), 2.0, MISSED),
        (Goal("fast", "rate", 3.0, at_least=True, of=("slow", "nobody")), 4.0, HELD),
        (Goal("slow", "rate", 0.3, of=("middling", "fast")), 0.5, MISSED),
        (Goal("slow", "rate", 0.5, of=("fast",), of_above=3.9), 0.25, HELD),
        (Goal("slow", "rate", 0.5, of=("fast",), of_above=4.0), None, UNKNOWN),
        (Goal("slow", "rate", 0.5, of=("nobody",)), None, UNKNOWN),
        (Goal("slow", "memory", 0.5), None, UNKNOWN),
        (Goal("nobody", "rate", 0.5), None, UNKNOWN),
    ],
)
def test_a_goal_is_held_or_missed_by_what_was_found_and_else_not_measured(
    goal: Goal, value: float | None, verdict: str
) -> None:
    judged = judge(goal, FOUND)
    assert (judged.value, judged.verdict) == (value, verdict)


def test_a_report_shows_medians_spread_ratios_and_verdicts() -> None:
    goals = (Goal("fast", "rate", 3.0, at_least=True, of=("slow",)), Goal("fast", "memory", 10.0))
    result = Result("S0", "an example", "slow", goals, absent={"Other": "not installed"})
    result.add(FOUND)
    lines = text(result).splitlines()
    [fast] = [line.split() for line in lines if line.strip().startswith("fast")]
    assert fast == ["fast", "4", "±100%", "20", "±100%", "4.00"]
    assert [line.split()[0] for line in lines if "fast: " in line] == [HELD, MISSED]
    assert "  left out: Other: not installed" in lines
    assert summary([result]).splitlines()[0] == "goals: 1 held, 1 missed, 0 not measured"
    record = json.loads(json.dumps(as_json(result)))
    assert record["medians"]["fast"] == {"rate": 4.0, "memory": 20.0} and record["found"] == FOUND
    assert [(goal["value"], goal["verdict"]) for goal in record["goals"]] == [(4.0, HELD), (20.0, MISSED)]


def test_a_report_can_be_drawn() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    draw(Result("S0", "an example", "slow", (), found=FOUND), figure)
    assert [len(axes.patches) for axes in figure.axes] == [3, 1]


def test_memory_drifts_as_far_as_the_mean_of_a_second_went_from_where_it_was_after_warming_up() -> None:
    calm = [(tenth / 10, 500.0 if tenth < 20 else 100.0) for tenth in range(101)]
    assert drift(calm) == (0.0, 100.0)
    assert drift([(second, held - 50 * (second >= 8)) for second, held in calm])[0] == 50.0
    assert drift([(second, held + 20 * (second >= 9)) for second, held in calm])[0] == pytest.approx(20.0)


def test_rounds_are_counted_without_the_first_which_warm_up() -> None:
    figures = rounds.figures([9.0] * 10 + [1e-6] * 98 + [3e-6] * 2)
    assert figures == pytest.approx({rounds.MEAN: 1.04, rounds.MIDDLE: 1.0, rounds.LATE: 3.0})


# The suite


def open_nothing(setting: Setting) -> list[Step]:
    raise Absent("there is no Java")


def test_contenders_take_turns_and_what_fails_is_told_and_left_out() -> None:
    turns: list[str] = []

    def contender(name: str, error: Exception | None = None) -> Step:
        def run() -> dict[str, Any]:
            turns.append(name)
            if error is not None:
                raise error
            return one(name, {"rate": float(len(turns))})

        return Step(name, run, 2 if name == "rare" else None)

    contenders = [contender("a"), contender("gone", Absent("not here")), contender("wrong", WrongCounts("lost one")),
                  contender("rare"), contender("b")]  # fmt: skip
    result = carry_out(Workload("S0", "", lambda setting: contenders, ()), setting(Path()), 3)
    assert turns == ["a", "gone", "wrong", "rare", "b", "a", "rare", "b", "a", "b"]
    assert {name: len(row["rate"]) for name, row in result.found.items()} == {"a": 3, "rare": 2, "b": 3}
    assert result.absent == {"gone": "not here"} and result.wrong == ["wrong: WrongCounts: lost one"]
    once = carry_out(Workload("S0", "", lambda setting: contenders, (), repeat_max=1), setting(Path()), 3)
    assert len(once.found["a"]["rate"]) == 1
    assert carry_out(Workload("S0", "", open_nothing, ()), setting(Path()), 3).absent == {"all": "there is no Java"}


def test_every_workload_is_there_and_its_goals_are_told_in_words() -> None:
    by_hand = 17  # the soak
    numbers = sorted({*range(1, 22), 32} - {by_hand})
    assert [workload.id for workload in WORKLOADS] == [f"S{number}" for number in numbers]
    assert [workload.id for workload in chosen("s9,S2")] == ["S2", "S9"] and chosen("") == list(WORKLOADS)
    assert all(goal.text() for workload in WORKLOADS for goal in workload.goals)
    assert all(workload.goals for workload in WORKLOADS)


def test_a_workload_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = suite(tmp_path, "--only", "S1,S99")
    assert done.returncode == 2 and "no workload S99" in done.stderr and not done.stdout


def test_a_count_that_is_not_right_is_an_error_and_a_program_that_fails_is_absent() -> None:
    with pytest.raises(WrongCounts, match="1,001 records came out, not 1,000"):
        check_count("it", 1001, 1000)
    with pytest.raises(Absent, match="it does not run here: ZeroDivisionError"):
        run_json([sys.executable, "-c", "1 / 0"], "it")
    with pytest.raises(Absent, match="nowhere/python"):
        run_json(["nowhere/python"], "it")


def setting(folder: Path) -> Setting:
    """Return the suite's settings, with nothing left to close."""
    return Setting(True, folder, ExitStack(), peers=folder / "no-peers")


# Workloads


def test_the_plain_loops_count_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b a\n\nb\n", encoding="ascii")
    record = plain("words", path)
    assert record["records"] == 4 and record["seconds"] > 0 and 1 < record["peak_mb"] < 100


@pytest.mark.slow
@pytest.mark.cluster
def test_words_are_counted_by_one_and_by_two_processes_beside_the_plain_loop(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 300, encoding="ascii")
    done = suite(tmp_path, "--only", "S2", "--quick", "--repeat", "1", "--text", str(path))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    found = record["workloads"]["S2"]["found"]
    assert {PLAIN, ONE, TWO, ORDERED} <= found.keys()
    assert all(value > 0 for row in found.values() for values in row.values() for value in values)
    assert record["repeat"] == 1 and "S2  word count, two processes" in done.stdout and "[S2 1/1]" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
def test_words_are_counted_by_epoch_and_the_counts_are_right(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 300, encoding="ascii")
    done = suite(tmp_path, "--only", "S12", "--quick", "--repeat", "1", "--text", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))["workloads"]["S12"]["found"]
    assert {PLAIN, ONE, TWO} <= found.keys() and "[S12 1/1] counts are right" in done.stderr


@pytest.mark.cluster
@counting()
def test_random_keys_are_counted_and_memory_is_that_of_the_worker(tmp_path: Path) -> None:
    loop, job, *peers = number_steps(setting(tmp_path), keys=1_000)
    assert loop.run()[PLAIN][RATE][0] > 0
    found = job.run()[job.name]
    assert found[RATE][0] > 0 and 1 < found[MEMORY][0] < 1_000
    for each in peers:
        with pytest.raises(Absent, match="not installed"):
            each.run()


def test_random_numbers_are_the_same_each_time_and_of_so_many_keys(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        write_numbers(path, 100, 100 * RECORDS_PER_KEY)
    one_file, other = (path.read_text(encoding="ascii") for path in paths)
    assert one_file == other and {int(line) for line in one_file.splitlines()} <= set(range(100))
    assert len(one_file.splitlines()) == 500 and KEYS_QUICK * RECORDS_PER_KEY == 500_000


def test_states_of_each_shape_arrive_as_they_were_and_what_they_cost_is_shown() -> None:
    shown = CliRunner().invoke(encoding.main, ["--keys", "20", "--repeat", "1"])
    assert shown.exit_code == 0 and all(name in shown.output for name in encoding.STATES)


@pytest.mark.cluster
@counting()
def test_rounds_are_measured_with_one_worker_with_two_processes_and_bare() -> None:
    found = {step.name: step.run()[step.name] for step in rounds.steps(20)}
    assert list(found) == [PLAIN, rounds.ONE, rounds.BARE, rounds.TWO]
    assert all(row[rounds.MIDDLE][0] > 0 for row in found.values())


@pytest.mark.slow
@pytest.mark.cluster
@counting()
def test_processor_time_is_that_of_all_processes_without_their_start() -> None:
    loop, single, two = processor_time.steps((1, 2), 200_000)
    [(name, found)] = loop.run().items()
    assert name == PLAIN and found[processor_time.COST][0] > 0
    for each, peers in ((single, 1), (two, 2)):
        assert list(each.run()) == [processor_time.row(peers)]


class Stalling(list[int]):
    """Return the keys of a tick that takes the program a while to send."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(STALL_SECONDS)
        return super().__iter__()


@pytest.mark.slow
def test_what_was_due_while_the_program_stalled_is_late_for_all_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(rate: float, ticks: int, seed: int) -> list[list[int]]:
        return [Stalling([1]) if tick == stalled else [tick] for tick in range(ticks)]

    stalled = round(latency.WARM_UP_SECONDS / latency.TICK_SECONDS) + 5
    monkeypatch.setattr(latency, "keys_of_ticks", keys)
    [found] = execute(Config.thread(), latency.main, ["100", "0.5"])
    assert found["came"] == found["sent"] == 150 and len(found["late"]) == 50
    stall_ms, tick_ms = STALL_SECONDS * 1000, latency.TICK_SECONDS * 1000
    for ticks_later in range(round(stall_ms / tick_ms)):  # no record could be sent before the stall was over
        assert sum(ms >= stall_ms - ticks_later * tick_ms for ms, _ in found["late"]) > ticks_later


@pytest.mark.slow
@pytest.mark.cluster
@counting()
def test_latency_is_measured_across_two_processes() -> None:
    [figures] = latency.run_program("program", rate=200, seconds=1).values()
    assert 0 < figures[latency.P50][0] <= figures[latency.P99][0] <= figures[latency.MAX][0]


@pytest.mark.slow
@pytest.mark.cluster
@counting()
def test_latency_is_measured_beside_checkpoints_and_a_restart_from_the_command_to_the_first_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    [figures] = durable_rates.run_latency("program", rate=200, seconds=1, keys=100, kept=True).values()
    assert 0 < figures[latency.P50][0] <= figures[latency.P99][0]
    kept = durable_restart.Kept(tmp_path, "dicts", keys=100, processes=1)
    for _ in range(2):
        [found] = durable_restart.restart(kept, "restart", processes=2).values()
        assert found[durable_restart.START][0] > 0

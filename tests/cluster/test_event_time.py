"""Event time of real jobs: what their sources report, and the results."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow import tumbling
from megaflow.cli.text import status_text, watermark_text
from megaflow.errors import PeerFailed
from tests.cluster.processes import STATUS_SECONDS, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def numbers(flow: Any) -> Any:
    """Read lines that begin with seconds; emit nothing."""
    return flow.lines().event_time(lambda line: int(line.split()[0]), out_of_order=10).filter(lambda line: False)


def write(path: Path, first: int, last: int) -> None:
    with path.open("a") as file:
        file.write("".join(f"{n} click\n" for n in range(first, last + 1)))


def event_time(job: Any) -> tuple[float | None, float | None]:
    """Return the watermark, and its lag behind the greatest timestamp, in seconds."""
    found = job.status().watermark
    return None if found.micros is None else found.micros / 1_000_000, found.lag_seconds


@pytest.mark.slow
def test_of_two_files_the_one_that_is_behind_holds_event_time_back(tmp_path: Path) -> None:
    left, right = tmp_path / "left.log", tmp_path / "right.log"
    write(left, 0, 100)
    write(right, 50, 200)
    with megaflow.start(numbers, lines=f"{tmp_path}/*.log", follow=True, idle_timeout=3600.0) as job:
        wait_until(lambda: event_time(job) == (90, 110), STATUS_SECONDS)
        write(right, 300, 300)
        wait_until(lambda: event_time(job) == (90, 210), STATUS_SECONDS)
        write(left, 150, 150)
        wait_until(lambda: event_time(job) == (140, 160), STATUS_SECONDS)


@pytest.mark.slow
def test_one_that_has_nothing_more_holds_it_back_no_longer(tmp_path: Path) -> None:
    left, right = tmp_path / "left.log", tmp_path / "right.log"
    write(left, 0, 100)
    write(right, 50, 200)
    with megaflow.start(numbers, lines=f"{tmp_path}/*.log", follow=True, idle_timeout=0.5) as job:
        wait_until(lambda: event_time(job)[0] is not None and len(job.status().watermark.idle) == 2, STATUS_SECONDS)
        write(right, 300, 300)
        wait_until(lambda: event_time(job)[0] == 290, STATUS_SECONDS)
        wait_until(lambda: len(job.status().watermark.idle) == 2, STATUS_SECONDS)
        found = job.control.explain().watermark
        left_idle, right_idle = sorted(found.idle_partitions, key=lambda each: -each.lag_seconds)
        assert (left_idle.lag_seconds, right_idle.lag_seconds) == (200, 0)
        assert left_idle.idle_seconds > right_idle.idle_seconds >= found.all_idle_seconds >= 0
        lines = watermark_text(found).splitlines()
        idle = "  idle for [0-9.]+ s:"
        assert re.fullmatch(f"{idle} {left_idle.partition} .*, 200 s behind the newest record", lines[1]), lines
        assert re.fullmatch(f"{idle} {right_idle.partition} .*, the furthest one", lines[2]), lines


def watermark(job: Any) -> Any:
    return job.control.explain().watermark


def clicks_and_errors(flow: Any) -> Any:
    """Count clicks and errors by minute, each with its own timestamps."""
    lines = flow.lines().map(str.split)
    counts = []
    for kind in ("click", "error"):
        own = lines.filter(lambda line, kind=kind: line[1] == kind).event_time(lambda line: int(line[0]), name=kind)
        counted = own.map(lambda line: (line[1], 1)).window(tumbling(60), name=f"{kind}s").count()
        counts.append(counted.map(lambda found: (found[0], found[1].start, found[2])))
    return counts[0].concat(counts[1])


def test_branch_without_records_does_not_stop_event_time(tmp_path: Path) -> None:
    log, counts = tmp_path / "app.log", tmp_path / "counts"
    log.write_text("5 error\n6 click\n")
    with megaflow.start(
        clicks_and_errors, lines=f"{tmp_path}/*.log", follow=True, idle_timeout=0.5, output=f"jsonl:{counts}"
    ) as job:

        def closed() -> list[str]:
            latest[0] += 10
            write(log, latest[0], latest[0])
            return counts.read_text().splitlines() if counts.exists() else []

        latest = [10]
        wait_until(lambda: len(closed()) >= 3, STATUS_SECONDS)
        found = watermark(job)
        assert [each.operator for each in found.idle_partitions] == ["error"] and found.held_by.operator == "click"
        assert {each.partition for each in (*found.idle_partitions, found.held_by)} == {str(log)}, "no inode"
        assert "  idle at error alone for " in watermark_text(found)
        with log.open("a") as file:
            file.write(f"{latest[0]} error\n")
        wait_until(lambda: not any(each.operator for each in watermark(job).idle_partitions), STATUS_SECONDS)
    records = [json.loads(line)["record"] for line in counts.read_text().splitlines()]
    assert sorted(each for each in records if each[1] == 0) == [["click", 0, 5], ["error", 0, 1]]
    assert ["error", latest[0] // 60 * 60, 1] in records, "it is not late"


@pytest.mark.slow
def test_a_status_shows_how_late_records_of_each_partition_are(tmp_path: Path) -> None:
    left, right = tmp_path / "left.log", tmp_path / "right.log"
    write(left, 0, 100)
    write(right, 50, 200)
    with megaflow.start(numbers, lines=f"{tmp_path}/*.log", follow=True, idle_timeout=3600.0) as job:
        wait_until(lambda: event_time(job) == (90, 110), STATUS_SECONDS)
        assert job.status().watermark.lateness == (), "all are in order"
        write(left, 80, 98)
        write(left, 101, 101)
        wait_until(lambda: event_time(job) == (91, 109), STATUS_SECONDS)
        (late,) = job.status().watermark.lateness
        job.control.add_workers(1)
        job.control.remove_workers(0)
        write(left, 41, 41)
        write(left, 102, 102)
        wait_until(lambda: event_time(job) == (92, 108), STATUS_SECONDS)
        status = job.status()
    assert (late.operator, late.input, late.records, late.max_seconds) == ("event_time", "lines", 19, 20)
    assert 11 <= late.p50_seconds <= 11 * 17 / 16 and late.p99_seconds == 20
    (after,) = status.watermark.lateness
    assert (after.records, after.max_seconds) == (20, 60), "whoever reads it, and whoever coordinates"
    row = ["event_time", "lines", after.partition, "20", "11", "60", "60"]
    assert row in [line.split() for line in status_text(status).splitlines()]


def late_of(flow: Any) -> Any:
    """Emit (file, seconds) of each late record."""
    lines = flow.lines().map(str.split).event_time(lambda line: int(line[1]))

    def fold(name: Any, time: Any, seconds: list[int], state: Any, timers: Any) -> Any:
        watermark = timers.watermark
        return state, [(name, each) for each in seconds if watermark is not None and each < watermark]

    timed = lines.map(lambda line: (line[0], int(line[1]))).stateful_unary(fold)
    return timed.concat(lines.plain().filter(lambda line: line[2] == "last").map(lambda line: (line[0], "read")))


@pytest.mark.slow
def test_of_two_files_of_one_day_on_one_worker_no_record_is_late(tmp_path: Path) -> None:
    for name in ("left", "right"):
        lines = [f"{name} {n} {'last' if n == 4999 else 'more'}\n" for n in range(5000)]
        (tmp_path / f"{name}.log").write_text("".join(lines))
    records = megaflow.run(late_of, lines=f"{tmp_path}/*.log", rate=5000)
    check_equal(sorted(records, key=str), [("left", "read"), ("right", "read")])


def alarms(flow: Any) -> Any:
    """Emit the key and the time an hour after each item of a key, by the items' own time."""
    items = flow.items().event_time(lambda item: item[1])

    def fold(key: Any, time: Any, records: list[Any], state: Any, timers: Any) -> Any:
        for record in records:
            if record[0] == "item":
                timers.at_event(record[1] + timedelta(hours=1), ("due", record[1]))
        return state, [(key, record[1]) for record in records if record[0] == "due"]

    return items.map(lambda item: (item[0], ("item", item[1]))).stateful_unary(fold)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_timers_take_datetimes_on_a_stream_of_datetimes(processes: int) -> None:
    items = [(key, NOON + timedelta(minutes=30 * n)) for n in range(8) for key in ("a", "b", "c")]
    check_equal(sorted(megaflow.run(alarms, items=items, processes=processes)), sorted(items))


def second(line: str) -> int:
    """Return the seconds at the beginning of a line."""
    return int(line.split()[0])


def counted(lines: Any, name: str) -> Any:
    """Emit (name, start, lines) of each ten seconds."""
    windows = lines.map(lambda line: (name, line)).window(tumbling(10), name=name).count().plain()
    return windows.map(lambda found: (found[0], found[1].start, found[2]))


def of_two_inputs(flow: Any) -> Any:
    """Read two inputs, each with its own timestamps and unit; the left one also with other timestamps, which fall."""
    left, right = flow.lines("left"), flow.lines("right")
    falling = left.event_time(lambda line: 1000 - second(line), out_of_order=1000, name="falling")
    by_datetime = right.event_time(lambda line: NOON + timedelta(seconds=second(line)))
    right_ones = counted(by_datetime, "right").map(lambda each: (each[0], str(each[1]), each[2]))
    by_ms = left.event_time(lambda line: 1000 * second(line), unit="ms")
    return counted(by_ms, "left").concat(counted(falling, "falling"), right_ones)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_windows_by_several_times_are_each_by_its_own(tmp_path: Path, processes: int) -> None:
    write(tmp_path / "left", 0, 199)
    write(tmp_path / "right", 100, 399)
    lines = {name: str(tmp_path / name) for name in ("left", "right")}
    found = megaflow.run(of_two_inputs, lines=lines, processes=processes, rate=500.0)
    right: list[Any] = [("left", 10_000 * n, 10) for n in range(20)]
    right += [("falling", 800, 9), *(("falling", 10 * n, 10) for n in range(81, 100)), ("falling", 1000, 1)]
    right += [("right", str(NOON + timedelta(seconds=10 * n)), 10) for n in range(10, 40)]
    check_equal(sorted(found, key=str), sorted(right, key=str))


def of_both_kinds(flow: Any) -> Any:
    seconds = flow.lines("left").event_time(second, name="in_seconds")
    return counted(seconds.concat(flow.lines("right").event_time(lambda _: NOON, name="in_datetimes")), "both")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_streams_of_seconds_and_of_datetimes_that_are_put_together_are_refused_with_both(
    tmp_path: Path, processes: int
) -> None:
    write(tmp_path / "left", 0, 99)
    write(tmp_path / "right", 0, 99)
    lines = {name: str(tmp_path / name) for name in ("left", "right")}
    with pytest.raises(PeerFailed, match=r"in_seconds \(.*test_event_time.py:\d+\) and in_datetimes \(.*:\d+\)"):
        megaflow.run(of_both_kinds, lines=lines, processes=processes)


# The end, and what stays open ----------------------------------------------------------------


def by_ten(flow: Any) -> Any:
    """Build windows of ten seconds over lines of seconds and a word, and a fold that emits its calls for all kinds of
    timers.
    """
    lines = flow.lines().map(str.split).event_time(lambda line: int(line[0]), out_of_order=2)
    pairs = lines.map(lambda line: ("all", line[1]))

    def remind(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        for value in values:
            if isinstance(value, str):
                timers.at_event(int(value[1:]) + 30, ("event", value))
                timers.after(3600, ("clock", value))
                timers.at(time + 500, ("epoch", value))
        return None, [value for value in values if not isinstance(value, str)]

    flow.output("late", pairs.window(tumbling(10), name="w").late().plain())
    flow.output("timers", pairs.stateful_unary(remind, name="remind"))
    collected = pairs.window(tumbling(10), name="windows").collect()
    return collected.map(lambda each: (each[1].start, each[2], *["early"] * (not each[1].is_final))).plain()


def run_days(folder: Path, days: list[tuple[str, dict[str, Any]]]) -> list[tuple[list[Any], list[Any], list[Any]]]:
    """Append lines to a file and run the job on it, day by day; return its windows, late records and timers."""
    found = []
    for text, options in days:
        with (folder / "lines").open("a") as file:
            file.write(text)
        late: list[Any] = []
        timers: list[Any] = []
        outputs = {"late": late, "timers": timers}
        windows = megaflow.run(by_ten, lines=str(folder / "lines"), outputs=outputs, **options)
        found.append((windows, late, timers))
    return found


@pytest.mark.slow
def test_windows_and_timers_stay_open_for_the_next_run(tmp_path: Path) -> None:
    state = {"state": tmp_path / "kept"}
    first, second, third, fourth = run_days(
        tmp_path,
        [
            ("1 r1\n12 r12\n", state),
            ("14 r14\n25 r25\n", state),
            ("", {**state, "close_windows": True}),
            ("29 r29\n61 r61\n", state),
        ],
    )
    check_equal(first, ([(0, ["r1"])], [], [("epoch", "r1"), ("epoch", "r12")]))
    check_equal(second, ([(10, ["r12", "r14"])], [], [("epoch", "r14"), ("epoch", "r25")]))
    windows, late, timers = third
    events = [("event", f"r{number}") for number in (1, 12, 14, 25)]
    check_equal((windows, late, timers[:4]), ([(20, ["r25"])], [], events))
    check_equal(sorted(timers[4:]), sorted(("clock", each) for _, each in events))
    windows, late, timers = fourth
    check_equal((windows, late), ([], [("all", "r29")]), "what has closed does not open again")
    check_equal(sorted(timers), sorted([("event", "r29"), ("epoch", "r29"), ("epoch", "r61")]))


def test_without_a_store_everything_closes_at_the_end(tmp_path: Path) -> None:
    [(windows, late, timers)] = run_days(tmp_path, [("1 r1\n12 r12\n", {})])
    check_equal((windows, late, len(timers)), ([(0, ["r1"]), (10, ["r12"])], [], 6))


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_without_a_store_drains_unless_told_not_to(tmp_path: Path, drain: bool) -> None:
    (tmp_path / "lines").write_text("".join(f"{number} r{number}\n" for number in range(1, 13)))
    timers: list[Any] = []
    outputs: dict[str, Any] = {"late": [], "timers": timers}
    with megaflow.start(by_ten, lines=str(tmp_path / "lines"), follow=True, outputs=outputs) as job:
        wait_until(lambda: event_time(job)[0] == 10, STATUS_SECONDS)
        job.stop(drain=drain)
        windows = list(job.outputs())
        summary = job.wait()
    kinds = {kind for kind, _ in timers}
    clicks = [f"r{number}" for number in range(1, 13)]
    if drain:
        check_equal(windows, [(0, clicks[:9]), (10, clicks[9:], "early")])
        check_equal(kinds, {"event", "clock", "epoch"})
        check_equal((summary.early.windows, summary.early.timers, summary.early.clock_timers), (2, 12, 12))
    else:
        check_equal(windows, [(0, clicks[:9])])
        check_equal(kinds, {"epoch"})
        check_equal((summary.open.windows, summary.open.timers, summary.open.clock_timers), (2, 12, 12))

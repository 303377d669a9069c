"""The metrics of a job: their values while workers come, go and are lost, in text that Prometheus accepts."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from megaflow.control.job_events import CoordinatorStarted, JobEvent, Recovering, StepDone
from megaflow.control.latency import BOUNDS_SECONDS
from megaflow.control.reports import (
    CheckpointStatus,
    Durations,
    JobStatus,
    LatencyQuantiles,
    PartitionLag,
    SinkStatus,
    StepReport,
    UsefulTime,
    WorkerStatus,
)
from megaflow.control.watermark_messages import WatermarkStatus
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, status_of
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_storage import JobStorage
from megaflow.web.metrics import LABEL_CHARACTERS_MAX, Metrics
from tests.web.deployed import METRICS

Series: TypeAlias = tuple[str, frozenset[tuple[str, str]]]

KINDS = {name.removesuffix("_total"): kind for name, kind in METRICS.items()}  # as the parser names them


def worker(id: int, records: int = 0, **facts: Any) -> WorkerStatus:
    """A worker whose operator `count` has applied so many records."""
    one = WorkerStatus(id, "running", 100 + id, f"h:{id}", records, records, 0.0, LatencyQuantiles(), 2, 7)
    useful = {"count": UsefulTime(records)}
    return replace(one, **{"useful": useful, "outputs": {"": records}, "memory_bytes": 1000 + id} | facts)


def status(*workers: WorkerStatus, **facts: Any) -> JobStatus:
    return JobStatus("job", "running", 9, 8, workers, (), **facts)


def unknown(state: str, *silent: int) -> JobStatus:
    """A status of a job that cannot be asked for its workers."""
    return JobStatus("job", state, None, None, (), (), silent=silent)


class Bench:
    """Metrics, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 50.0
        self.metrics = Metrics(lambda: self.now)

    def take(self, *news: JobStatus | JobEvent) -> None:
        for each in news:
            self.metrics.take(each)

    def series(self) -> dict[Series, float]:
        """Return the values of all series."""
        text = self.metrics.text("")[0].decode()
        found: dict[Series, float] = {}
        for family in parse_text(text):
            for sample in family.samples:
                series = sample.name.removeprefix("megaflow_"), frozenset(sample.labels.items())
                assert series not in found, "Prometheus refuses repeated series"
                found[series] = sample.value
        return found

    def of(self, name: str, *labels: str) -> Any:
        """Return the values of a metric by these labels, or the one value of a metric without labels."""
        found = {
            tuple(dict(pairs)[label] for label in labels): value for (each, pairs), value in self.series().items()
            if each == name
        }  # fmt: skip
        if not labels:
            return found.get(())
        return {key[0] if len(key) == 1 else key: value for key, value in found.items()}


FULL = status(
    worker(
        0, 30, useful={"count": UsefulTime(20, late=3), "join": UsefulTime(10)},
        partitions=(PartitionLag("pages", "'a'", "7", 5), PartitionLag("pages", "'b'", "7", 6),
                    PartitionLag("clicks", "'c'", "7", None)),
        skipped={"pages": 2}, inputs={"pages": 9, "clicks": 9}, sinks=(SinkStatus("box", 7, 0, 40),),
        outputs={"": 11, "late": 3}, blocked_seconds={"queues": 1.5}, arrived={"count": 4},
        pauses=Durations((0, 3, *[0] * 14, 1), 400.5), latencies=Durations((0, 0, 0, 5, *[0] * 13), 0.05), bins=3,
    ),
    worker(1, 5, address="h:0", arrived={"count": 1}, pauses=Durations((1, *[0] * 16), 0.0005)),
    worker(2, 7, state="joined"),
    silent=(3,),
    checkpoint=CheckpointStatus(4, 30, 2.0, 100, 0.25, total_bytes=900),
    watermark=WatermarkStatus(1_000_000, lag_seconds=31.5),
)  # fmt: skip


def test_families_have_the_promised_names_kinds_and_help() -> None:
    bench = Bench()
    for news in ((), (FULL,)):
        bench.take(*news)
        families = list(parse_text(bench.metrics.text("")[0].decode()))
        assert {family.name: family.type for family in families} == KINDS
        assert all(family.documentation[0].isupper() and family.documentation.endswith(".") for family in families)


def test_the_documentation_lists_each_metric_with_labels_and_kind() -> None:
    bench = Bench()
    bench.take(FULL, JobEvent(0, 1, 0.0, StepDone(StepReport(9, 1, 2, 3, 0.5))))
    found = {
        (sample.name if family.type == "gauge" else f"{family.name}_total" if family.type == "counter" else family.name,
         ", ".join(label for label in sample.labels if label != "le"), family.type)
        for family in parse_text(bench.metrics.text("")[0].decode()) for sample in family.samples
    }  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "watching.md").read_text("utf-8")
    assert found == set(re.findall(r"^\| `(megaflow_\w+)` \| ([\w, ]*?) ?\| (\w+) \|", page, re.MULTILINE))


def test_values_are_those_of_the_status() -> None:
    bench = Bench()
    bench.take(FULL)
    assert bench.of("records_total", "operator", "worker") == {
        ("count", "0"): 20, ("join", "0"): 10, ("count", "1"): 5, ("count", "2"): 7
    }  # fmt: skip
    assert bench.of("source_lag_records", "input") == {"pages": 11}, "a lag that is not known is not zero"
    assert bench.of("watermark_lag_seconds") == 31.5
    assert bench.of("late_records_total", "operator") == {"count": 3, "join": 0}
    assert bench.of("bins", "worker") == {"0": 3, "1": 2, "2": 2}
    assert bench.of("memory_bytes", "worker") == {"0": 1000, "2": 1002}, "workers 0 and 1 have one process"
    assert bench.of("workers", "state") == {"running": 2, "joined": 1, "leaving": 0, "silent": 1}
    assert bench.of("output_records_total", "output") == {"": 11 + 5 + 7, "late": 3, "box": 40}
    assert bench.of("dead_letters_total", "input") == {"pages": 2, "clicks": 0, "": 0}
    assert bench.of("backpressure_seconds_total", "worker", "limit")["0", "queues"] == 1.5
    assert bench.of("backpressure_seconds_total", "worker", "limit")["1", "pace"] == 0
    assert bench.of("bin_moves_total", "operator") == {"count": 5, "join": 0}
    assert bench.of("checkpoint_bytes_total") == 900 and bench.of("checkpoint_duration_seconds") == 0.25


def test_buckets_of_a_histogram_add_up() -> None:
    bench = Bench()
    bench.take(FULL)
    pauses = bench.of("bin_pause_seconds_bucket", "le")
    assert [pauses[str(bound)] for bound in BOUNDS_SECONDS] == [1] + [4] * (len(BOUNDS_SECONDS) - 1)
    assert pauses["+Inf"] == bench.of("bin_pause_seconds_count") == 5
    assert bench.of("bin_pause_seconds_sum") == 400.5005
    latencies = bench.of("latency_seconds_bucket", "le")
    assert (latencies["0.005"], latencies["0.01"], bench.of("latency_seconds_sum")) == (0, 5, 0.05)


def test_series_of_a_joiner_begin_and_those_of_a_leaver_end() -> None:
    bench = Bench()
    late = {"count": UsefulTime(5, late=2)}
    bench.take(status(worker(0, 10)), status(worker(0, 11), worker(1, 5, useful=late, skipped={"": 1})))
    assert bench.of("records_total", "operator", "worker") == {("count", "0"): 11, ("count", "1"): 5}
    assert bench.of("output_records_total", "output") == {"": 16}
    bench.take(status(worker(0, 12)))
    for name, labels in (("records_total", ("worker",)), ("bins", ("worker",)), ("memory_bytes", ("worker",))):
        assert bench.of(name, *labels).keys() == {"0"}
    assert {labels[0] for labels in bench.of("backpressure_seconds_total", "worker", "limit")} == {"0"}
    assert bench.of("workers", "state")["running"] == 1
    assert bench.of("output_records_total", "output") == {"": 17}, "the leaver keeps its part"
    assert (bench.of("late_records_total", "operator"), bench.of("dead_letters_total", "input")) == (
        {"count": 2}, {"": 1},
    )  # fmt: skip


def test_a_silent_worker_keeps_its_values() -> None:
    bench = Bench()
    bench.take(status(worker(0, 10), worker(1, 5)), status(worker(0, 12), silent=(1,)))
    assert bench.of("records_total", "operator", "worker") == {("count", "0"): 12, ("count", "1"): 5}
    assert bench.of("workers", "state") == {"running": 1, "joined": 0, "leaving": 0, "silent": 1}
    assert bench.of("output_records_total", "output") == {"": 17}
    bench.take(status(worker(0, 12), worker(1, 6)))
    assert bench.of("output_records_total", "output") == {"": 18} and bench.of("workers", "state")["silent"] == 0


@pytest.mark.parametrize("state", ["busy", "silent"])
def test_a_job_that_cannot_be_asked_keeps_its_values(state: str) -> None:
    bench = Bench()
    bench.take(FULL)
    before = bench.series()
    bench.take(unknown(state, 0))
    changed = {key for key, value in bench.series().items() if before[key] != value}
    assert {(name, dict(labels)["state"]) for name, labels in changed} == {("workers", "running")}
    assert bench.of("workers", "state") == {"running": 1, "joined": 1, "leaving": 0, "silent": 1}


def test_after_a_restart_counters_begin_at_zero() -> None:
    bench = Bench()
    old = status(worker(0, 10), worker(1, 5)), status(worker(0, 12))
    bench.take(*old, unknown("recovering"))
    names = {name for name, labels in bench.series() if "worker" in dict(labels)}
    assert not names, "a job that recovers has no workers"
    assert set(bench.of("workers", "state").values()) == {0}
    assert bench.of("output_records_total", "output") == {"": 17}
    bench.take(status(worker(0, 3), worker(1, 1)))
    assert bench.of("output_records_total", "output") == {"": 4}


def test_a_restart_that_no_status_shows_is_found() -> None:
    for news in (
        (status(worker(0, 3)),),
        (JobEvent(5, 1, 0.0, CoordinatorStarted(0, (0,))), status(worker(0, 13))),
    ):
        bench = Bench()
        bench.take(JobEvent(4, 1, 0.0, CoordinatorStarted(0, (0, 1))), status(worker(0, 10), worker(1, 5)), *news)
        assert bench.of("output_records_total", "output") == {"": news[-1].workers[0].records}  # type: ignore[union-attr]


def test_a_restart_that_a_status_shows_before_its_event_makes_sums_fall_once() -> None:
    bench, started = Bench(), CoordinatorStarted(0, (0,))
    sums = []
    for news in (
        JobEvent(4, 1, 0.0, started), status(worker(0, 10)), unknown("recovering"), status(worker(0, 1)),
        JobEvent(5, 1, 0.0, started), status(worker(0, 2), worker(1, 1)), JobEvent(5, 2, 0.0, started),
    ):  # fmt: skip
        bench.take(news)
        sums.append(sum(bench.of("output_records_total", "output").values()))
    assert sums == [0, 10, 10, 1, 1, 3, 3]


def test_a_status_shows_a_restart_before_its_events_come() -> None:
    bench = Bench()
    bench.take(status(worker(0, 5), attempt=3))
    assert bench.of("restarts_total") == 0
    bench.take(status(worker(0, 9), attempt=4))  # counts alone do not show it: they have grown
    assert bench.of("restarts_total") == 1
    bench.take(JobEvent(4, 1, 0.0, CoordinatorStarted(0, (0,))), status(worker(0, 10), attempt=4))
    assert bench.of("restarts_total") == 1


def test_restarts_are_counted_by_attempts() -> None:
    bench = Bench()
    started = CoordinatorStarted(0, (0,))
    assert bench.of("restarts_total") == 0
    for attempt, number, restarts in ((7, 1, 0), (7, 2, 0), (0, 0, 0), (8, 1, 1), (7, 2, 1), (8, 1, 1), (10, 1, 3)):
        bench.take(JobEvent(attempt, number, 0.0, Recovering("") if number == 0 else started))
        assert bench.of("restarts_total") == restarts


def test_duration_of_a_move_is_that_of_its_last_step() -> None:
    bench = Bench()
    assert bench.of("bin_move_duration_seconds") is None
    for number, seconds in enumerate((0.5, 0.25), start=1):
        bench.take(JobEvent(0, number, 0.0, StepDone(StepReport(9, 1, 2, 3, seconds))))
        assert bench.of("bin_move_duration_seconds") == seconds


def test_age_of_a_checkpoint_grows_between_statuses() -> None:
    bench = Bench()
    bench.take(status(worker(0)))
    assert bench.of("checkpoint_age_seconds") is None, "the job takes no checkpoints"
    bench.take(status(worker(0), checkpoint=CheckpointStatus()))
    bench.now += 4.0
    bench.take(status(worker(0), checkpoint=CheckpointStatus()))
    assert bench.of("checkpoint_age_seconds") == 4.0, "there is none yet"
    assert bench.of("checkpoint_duration_seconds") is None
    bench.take(status(worker(0), checkpoint=CheckpointStatus(1, 9, 2.0, 100, 0.25)))
    bench.now += 3.0
    bench.take(unknown("recovering"))
    bench.now += 5.0
    assert bench.of("checkpoint_age_seconds") == 10.0


HOSTILE = [
    'quo"te', "back\\slash", "line\nbreak", "carriage\rreturn", "tab\t", "nul\0", "\u2028\x85\x0b\x1c", "\ud800",
    "{a=}", "né 🌊", "<script>", "# HELP x", "x" * 10_000, "x" * 10_001, "",
]  # fmt: skip


def hostile() -> JobStatus:
    """A status whose names are all of HOSTILE."""
    names = dict.fromkeys(HOSTILE, 1)
    return status(worker(
        0, useful={name: UsefulTime(1, late=1) for name in HOSTILE}, outputs=names, skipped=names, inputs=names,
        arrived=names, partitions=tuple(PartitionLag(name, name, name, 1) for name in HOSTILE),
        sinks=tuple(SinkStatus(name, None, 0, 1) for name in HOSTILE),
    ))  # fmt: skip


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_hostile_names_become_valid_labels(accept: str) -> None:
    bench = Bench()
    bench.take(hostile())
    text, content_type = bench.metrics.text(accept)
    assert ("openmetrics" in content_type) == bool(accept)
    families = (parse_openmetrics if accept else parse_text)(text.decode())
    for family in families:
        labels = [pair for sample in family.samples for pair in sample.labels.items()]
        names = [value for key, value in labels if key in ("output", "input")]
        if names:
            assert len(set(names)) == len(names) and all(len(name) <= LABEL_CHARACTERS_MAX for name in names)
            assert {name for name in HOSTILE if len(name) < 100 and name != "\ud800"} <= set(names)
    shared = bench.of("output_records_total", "output")["x" * LABEL_CHARACTERS_MAX]
    assert shared == 4, "two outputs and two sinks"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt install prometheus")
@pytest.mark.parametrize("news", [(), (FULL,), (hostile(),)], ids=["nothing", "full", "hostile"])
def test_promtool_finds_no_fault(news: tuple[JobStatus, ...]) -> None:
    bench = Bench()
    bench.take(*news)
    text = bench.metrics.text("")[0]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# Any sequence of statuses ----------------------------------------------------------------

Change: TypeAlias = tuple[str, int, int]
CHANGES = st.lists(st.tuples(st.sampled_from(["join", "leave", "work", "silent", "restart"]), st.integers(0, 5),
                             st.integers(1, 9)), max_size=40)  # fmt: skip


@given(CHANGES)
def test_sums_are_those_of_all_workers_since_the_last_restart(changes: list[Change]) -> None:
    bench, counts, members, next_id = Bench(), {0: 0}, [0], 1  # counts: worker -> records, also of those that left
    for what, which, records in changes:
        silent: tuple[int, ...] = ()
        one = members[which % len(members)]
        if what == "join":
            members.append(next_id)
            counts[next_id] = 0
            next_id += 1
        elif what == "leave" and len(members) > 1:
            members.remove(one)
        elif what == "work":
            counts[one] += records
        elif what == "silent" and len(members) > 1:
            silent = (one,)
        elif what == "restart":
            bench.take(unknown("recovering"))
            counts, members, next_id = {0: records}, [0], 1
        answering = [worker(id, counts[id]) for id in members if id not in silent]
        bench.take(status(*answering, silent=silent))
        assert bench.of("output_records_total", "output") == {"": sum(counts.values())}
        seen = bench.of("records_total", "worker")
        assert seen == {str(id): counts[id] for id in members if str(id) in seen}
        assert set(members) - set(silent) <= set(map(int, seen)) <= set(members)


# A simulated job -------------------------------------------------------------------------

LINES = [f"word{number % 37}" for number in range(400)]
COUNTED = ("_total", "_count", "_sum", "_bucket")
RECORDS: Series = "records_total", frozenset({("operator", "count"), ("worker", "0")})


def count(word: str, one: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    total = (total or 0) + one
    return total, [(word, total)]


def dataflow(flow: Any) -> Any:
    return flow.lines().map(lambda line: (line, 1)).stateful_state_machine(count, bins=8, name="count")


class WatchedJob(SimulatedJob):
    """A job whose metrics are read while it runs."""

    def __init__(self, seed: int, storage: JobStorage | None = None) -> None:
        super().__init__(seed, dataflow, files={"text": LINES}, rate=800.0, storage=storage)
        self.bench = Bench()
        self.seen: list[dict[Series, float]] = []  # series after each status
        self.client(self.watch)

    def watch(self, talk: Talk) -> Waits:
        """Take the status again and again. Only members have series, and without a loss no counter falls."""
        lost = 0
        while True:
            now = yield from status_of(talk)
            self.bench.take(now)
            series = self.bench.series()
            members = {str(id) for id in (*(each.id for each in now.workers), *now.silent)}
            assert {dict(labels)["worker"] for _, labels in series if "worker" in dict(labels)} <= members
            if self.seen and lost == len(self.killed):
                before = self.seen[-1].items()
                assert not [key for key, value in before if key[0].endswith(COUNTED) and series.get(key, value) < value]
            lost = len(self.killed)
            self.seen.append(series)
            yield 0.02


def test_counters_of_a_simulated_job_never_fall() -> None:
    moved = left = 0.0
    for seed in range(3):
        job = WatchedJob(seed)
        job.client(move, add, balance, remove, move, seconds=0.05)
        assert job.run().error is None and len(job.seen) > 5
        moved += job.bench.of("bin_moves_total", "operator")["count"]
        workers = {key for seen in job.seen for key in seen if key[0] == "bins"}
        left += len(job.bench.of("bins", "worker")) < len(workers)
    assert moved > 10 and left


def test_a_simulated_job_that_resumes_counts_anew() -> None:
    fallen = 0
    for seed in range(3):
        job = WatchedJob(seed, JobStorage(Random(seed)))
        job.at(700, job.kill_one)
        assert job.run().error is None
        counts = [seen[RECORDS] for seen in job.seen if RECORDS in seen]
        fallen += counts != sorted(counts)
    assert fallen, "no seed resumed while it was watched"

"""`control recommend` and `control autoscale`: their output and their refusals. These tests start no process."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from megaflow.cli import scaling as module
from megaflow.cli.main import cli
from megaflow.control.messages import AddProcesses
from megaflow.control.reports import PendingMove
from tests.control.client.paper_job import PaperJob
from tests.control.client.test_autoscale import Cluster
from tests.words import says


@pytest.fixture(autouse=True)
def nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("MEGAFLOW_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A paper job instead of a connection. Its clock is the module's, and advances only during sleeps."""
    cluster = Cluster(PaperJob(rate=200.0, costs={"count": 0.01}))

    class Opened:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Cluster:
            return cluster

        def __exit__(self, *_: Any) -> None:
            pass

    class Clock:
        sleep = staticmethod(cluster.sleep)
        monotonic = staticmethod(lambda: cluster.now)

    monkeypatch.setattr(module, "conversation", Opened)
    monkeypatch.setattr(module, "time", Clock)
    yield cluster


def megaflow(*words: str) -> Result:
    return CliRunner().invoke(cli, ["control", *words], prog_name="megaflow")


def test_a_recommendation_shows_its_reasoning_and_the_command_that_follows_it(job: Cluster) -> None:
    result = megaflow("recommend")
    assert result.exit_code == 0 and result.stdout.splitlines() == [
        "       operator  offered/s  true rate  utilization  workers needed",
        "          count        600        300         100%            2.00",
        "everything else        200          -           0%            0.00",
        "200 lines per second arrive; 100 per second are processed; 500 wait.",
        "count: 600 records per second; a worker applies 300 per second of useful time, so it needs 2.00 workers "
        "(it used 100% of 1).",
        "Together they need the full time of 2.00 workers: 3 processes at 75% utilization.",
        "recommended: 3 processes instead of 1:",
        "  megaflow control add-workers 2 --balance",
    ]
    assert job.now == 5.0 and job.asked == [], "it looks for so long, and changes nothing"


def test_too_many_processes_are_named_the_newest_first(job: Cluster) -> None:
    job.job.rate, job.job.processes, job.job.each = 10.0, 3, 2
    said = megaflow("recommend", "--over", "2").stdout.splitlines()
    assert said[-3:] == [
        "recommended: 1 process instead of 3:",
        "  megaflow control remove-workers --id 4",
        "  megaflow control remove-workers --id 2",
    ]
    job.job.processes = 1
    assert megaflow("recommend").stdout.splitlines()[-1] == "recommended: 1 process, as now"


def test_a_recommendation_is_one_line_of_json(job: Cluster) -> None:
    record = json.loads(megaflow("recommend", "--json", "--target-rate", "450").stdout)
    assert record["job"] == "paper" and record["processes"] == {"now": 1, "recommended": 6}
    assert record["lines"]["wanted"] == 450.0 and record["lines"]["waiting"] == 500
    assert record["operators"][0]["true_rate"] == pytest.approx(300.0)
    assert record["workers"]["busy"] == {"0": pytest.approx(1.0)} and len(record["reasons"]) == 3


def test_there_is_no_recommendation_while_something_changes(job: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    status = job._status
    monkeypatch.setattr(job, "_status", lambda: replace(status(), pending=(PendingMove(3, 1),)))
    result = megaflow("recommend")
    assert result.exit_code == 1 and result.stdout == ""
    assert says(result.stderr, "No recommendation", "bins are moving")


def test_autoscale_tells_what_it_does_and_why_until_the_job_ends(job: Cluster) -> None:
    job.left = 20
    result = megaflow("autoscale", "--max", "5", "--every", "5", "--cool-down", "10")
    said = result.stdout.splitlines()
    assert result.exit_code == 0 and result.stderr == "megaflow: the job has ended\n"
    assert job.asked[0] == AddProcesses(2) and job.job.processes == 3
    assert said[0].startswith("wait, 1 process: Together") and said[0].endswith("Waiting for more samples that agree.")
    assert said[1].startswith("grow from 1 to 3 processes: Together they need the full time of 2.00 workers")
    assert [line for line in said if line.startswith("added worker")] and "moved" in "".join(said)
    assert said[-1].startswith("stay, 3 processes") and len(said) == len(set(said)), "what stays is told once"


def test_autoscale_tells_each_decision_as_json(job: Cluster) -> None:
    job.left = 12
    result = megaflow("autoscale", "--max", "2", "--json", "--every", "5", "--cool-down", "0")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    actions = [record["action"] for record in records if "action" in record]
    [change] = [record for record in records if "joins" in record]
    assert actions[:2] == ["wait", "grow"] and change["joins"][0]["workers"] == [1] and job.job.processes == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recommend", "--over", "0"], "--over 0"),
        (["recommend", "--over", "nan"], "--over nan"),
        (["recommend", "--target-utilization", "75"], "--target-utilization 75"),
        (["recommend", "--target-rate", "-1"], "--target-rate -1"),
        (["autoscale"], "--max"),
        (["autoscale", "--max", "0"], "--max"),
        (["autoscale", "--max", "2", "--min", "3"], "--min 3 and --max 2"),
        (["autoscale", "--max", "2", "--every", "0"], "--every 0"),
        (["autoscale", "--max", "2", "--cool-down", "-1"], "--cool-down -1"),
        (["autoscal", "--max", "2"], "Did you mean 'autoscale'"),
    ],
)
def test_wrong_words_are_explained_with_exit_code_2(words: list[str], said: str) -> None:
    result = megaflow(*words)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""

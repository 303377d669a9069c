"""A reader of another program finds a job's results by the job's name, and each row goes to one consumer."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import JobNotFound, UsageError
from megaflow.job import job_file
from megaflow.job.spark_sources import find_results
from megaflow.spark.results_source import Poll, ResultsPlace, parts, read_columns
from megaflow.timely.communication.secret import private_folder
from tests.cluster.processes import END_SECONDS, Process, wait_until
from tests.results import check_equal

COUNT = """
def count(word, n, total):
    return (total or 0) + 1, [(word, (total or 0) + 1)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """Start jobs in an empty folder."""
    (tmp_path / "count.py").write_text(COUNT)
    (tmp_path / "words.txt").write_text("rose\n" * 1000)
    started: list[Process] = []

    def start(*options: str) -> Process:
        command = [sys.executable, "-m", "megaflow", "run", "count.py", "--lines", "words.txt", *options]
        started.append(Process(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())}))
        return started[-1]

    yield start
    for each in started:
        each.finish()


def place_of(job: str, consumer: str) -> ResultsPlace:
    found, schema, addresses, secret = find_results(job, True, "")
    return ResultsPlace(found, addresses, schema, secret, consumer=consumer)


def read_all(place: ResultsPlace, at: int = 0, until: int = 1 << 60) -> list[tuple[Any, ...]]:
    """Read like a query with `availableNow`."""
    rows: list[tuple[Any, ...]] = []
    with closing(Poll(place)) as poll:
        poll.until_ended = True
        while at < until and (end := poll.latest(at)) > at:
            rows += [row for part in parts(at, end) for columns in read_columns(place, *part) for row in zip(*columns)]
            at = end
    return rows


@pytest.mark.cluster
def test_a_job_ends_when_its_consumer_has_read_each_row_once(program: Any) -> None:
    job = program("--name", "roses", "--output", "spark:megaflow?schema=word STRING, n LONG")
    wait_until(lambda: (private_folder() / "roses.json").exists() or job.poll() is not None, END_SECONDS)
    place = place_of("roses", "daily")
    assert json.loads(place.schema)["fields"][1]["name"] == "n"
    first = read_all(place, until=1)
    with closing(Poll(place_of("roses", "hourly"))) as other, pytest.raises(ValueError, match="consumer 'daily' has"):
        other.latest(0)
    check_equal(first + read_all(place, at=len(first)), [("rose", n + 1) for n in range(1000)])
    ended = job.end(END_SECONDS)
    assert ended.code == 0, ended.errors
    with pytest.raises(JobNotFound, match="the job 'roses' has ended"):
        find_results("roses", True, "")


@pytest.mark.cluster
def test_a_consumer_goes_on_after_its_job_was_killed(program: Any, tmp_path: Path) -> None:
    options = "--name", "kept", "--follow", "--state", "kept", "--output", "spark:megaflow?schema=word STRING, n LONG"
    first = program(*options)
    wait_until(lambda: (private_folder() / "kept.json").exists() or first.poll() is not None, END_SECONDS)
    rows = read_all(place_of("kept", "daily"), until=1)
    first.kill()
    first.wait(END_SECONDS)
    with (tmp_path / "words.txt").open("a") as words:
        words.write("rose\n" * 500)
    second = program(*options)
    wait_until(lambda: alive("kept", second.pid) or second.poll() is not None, END_SECONDS)
    place = place_of("kept", "daily")
    with closing(Poll(replace(place, consumer="hourly"))) as other, pytest.raises(ValueError, match="'daily' has read"):
        other.latest(0)
    while len(rows) < 1500:
        rows += read_all(place, at=len(rows), until=len(rows) + 1)
    check_equal(rows, [("rose", n + 1) for n in range(1500)])


def alive(name: str, pid: int) -> bool:
    job = job_file.read(private_folder() / f"{name}.json")
    return job is not None and job.pid == pid


@pytest.mark.cluster
def test_a_job_without_results_is_named_with_the_way_to_have_some(program: Any) -> None:
    job = program("--name", "plain", "--follow", "--output", "none")
    wait_until(lambda: (private_folder() / "plain.json").exists() or job.poll() is not None, END_SECONDS)
    with pytest.raises(UsageError, match=r"Job 'plain' has no results to read. .*--output 'spark:megaflow\?schema"):
        find_results("plain", True, "")


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(UsageError, match="register: session must be a SparkSession, not 'spark'"):
        megaflow.spark.register("spark")

"""Jobs with worker processes on Spark's executors: steered like others, and exact when an executor is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.cluster.processes import STATUS_SECONDS, WORDCOUNT, Run, committed, wait_until
from tests.cluster.test_web_page import printed_page
from tests.other_pythons import NEWEST, OLDEST, candidates, runs
from tests.results import check_equal
from tests.spark.test_spark_crashes import children_of, command_of, victims

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLUSTER = ("--on", "spark:local-cluster[2,2,1024]", "--conf", "spark.executor.memory=900m", "--start-timeout", "400")
WAIT_SECONDS = 4 * STATUS_SECONDS


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace SPARK_HOME by a folder of ours that looks the same, because executors of a local cluster work in it."""
    home = tmp_path / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    monkeypatch.setenv("SPARK_HOME", str(home))
    yield
    shutil.rmtree(home)


def check(out: Path, wanted: Counter[str]) -> None:
    """Compare with a plain count: each word counts up one by one."""
    got: dict[str, list[int]] = defaultdict(list)
    for line in out.read_text().splitlines():
        word, total = json.loads(line)["record"]
        got[word].append(total)
    check_equal(got, {word: list(range(1, total + 1)) for word, total in wanted.items()})


@pytest.mark.usefixtures("environment")
def test_a_job_on_executors_grows_moves_half_its_bins_and_shrinks_with_exact_counts(tmp_path: Path) -> None:
    out, words = tmp_path / "out.jsonl", [f"w{number}" for number in range(200)]
    run = Run(tmp_path, WORDCOUNT, "--lines", "-", "--output", f"jsonl:{out}", *CLUSTER, stdin=subprocess.PIPE)
    wanted: Counter[str] = Counter()

    def write() -> None:
        wanted.update(words)
        run.process.write_line(" ".join(words))

    try:
        wait_until(lambda: bool(run.files()) or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.end()
        write()
        run.reading()
        added = run.control("add-workers", "1", "--balance")
        assert added.returncode == 0, (added, run.said)
        write()
        status = run.status_when(lambda record: len(record["workers"]) == 2)
        owned = [each["bins"] for each in status["workers"]]
        assert min(sum(each.values()) if isinstance(each, dict) else each for each in owned) > 0, owned
        removed = run.control("remove-workers", "--id", "1")
        assert removed.returncode == 0, (removed, run.said)
        write()
        assert run.process.stdin is not None
        run.process.stdin.close()
        code, _, said = run.end()
        assert code == 0, said
    finally:
        run.process.finish()
    check(out, wanted)


def test_the_page_shows_and_steers_workers_on_executors(tmp_path: Path) -> None:
    words = "--lines", "-", "--output", "none", "--on", "spark:local[2]", "--processes", "2", "--start-timeout", "400"
    run = Run(tmp_path, WORDCOUNT, *words, "--web", "--web-control", stdin=subprocess.PIPE)
    try:
        page = printed_page(run.process, WAIT_SECONDS)
        with page.viewer() as viewer:
            document = viewer.shows(lambda document: len(document.get("workers", {})) == 2)
            owned = document["workers"]["1"]["bins"]
            status, moved = page.command("drain", worker=0, strategy="all-at-once")
            assert status == 200 and moved["result"]["bins"] > 0, moved
            viewer.shows(lambda document: document["workers"]["1"]["bins"] > owned)
            assert page.command("stop")[0] == 200
            viewer.shows(lambda document: document["status"]["state"] == "ended")
        code, _, said = run.end()
        assert code == 0, said
    finally:
        run.process.finish()


def test_executors_with_another_python_are_one_line_with_the_remedy(tmp_path: Path) -> None:
    versions = [f"3.{minor}" for minor in range(OLDEST, NEWEST + 1) if minor != sys.version_info.minor]
    found = [python for version in versions for python in candidates(version) if runs(python, version)]
    if not found:
        pytest.skip("no other version of Python is installed here")
    (tmp_path / "lines.txt").write_text("to be or not to be")
    run = Run(
        tmp_path, WORDCOUNT, "--lines", str(tmp_path / "lines.txt"), "--on", "spark:local[1]",
        "--conf", f"spark.pyspark.python={found[0]}",
    )  # fmt: skip
    try:
        code, output, said = run.end()
    finally:
        run.process.finish()
    assert (code, output) == (1, "") and re.fullmatch(
        r"megaflow: process 0 could not be started: executors run another Python than the launcher, [\d.]+: set "
        "PYSPARK_PYTHON to a Python of the same version that all of them have", said[-1]
    ), said  # fmt: skip
    assert all("waiting for" in line for line in said[:-1]), said


@pytest.mark.usefixtures("environment")
def test_an_executor_is_killed_and_the_job_goes_on_from_its_last_checkpoint_with_exact_counts(tmp_path: Path) -> None:
    out, store, lines = tmp_path / "out.jsonl", tmp_path / "store", tmp_path / "lines.txt"
    text = [f"w{number % 50} w{number % 7}" for number in range(20_000)]
    lines.write_text("\n".join(text))
    run = Run(
        tmp_path, WORDCOUNT, "--lines", str(lines), "--output", f"jsonl:{out}", "--state", str(store), "--rate", "1000",
        "--processes", "2", "--checkpoint-every", "0.3", *CLUSTER,
    )  # fmt: skip
    try:
        wait_until(lambda: committed(store) > 1 or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.end()
        executors = [pid for java in victims(run, "java") for pid in children_of(java)]
        executors = [pid for pid in executors if "ExecutorBackend" in command_of(pid) and has_worker(pid)]
        os.kill(executors[0], signal.SIGKILL)
        code = run.process.wait(WAIT_SECONDS)
        said = run.end()[2]
        assert code == 0 and any("restart 1 of 3" in line for line in said), said
        assert any("executor" in line for line in said if "restart 1" in line), said
    finally:
        run.process.finish()
    check(out, Counter(word for line in text for word in line.split()))


def has_worker(pid: int) -> bool:
    """Whether a worker of megaflow runs below this process."""
    return any("megaflow.job.worker" in command_of(each) or has_worker(each) for each in children_of(pid))

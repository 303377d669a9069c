"""A real Prometheus scrapes a real job: every query of the dashboard and of the alerts in deploy/ works there."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster.processes import Run
from tests.ports import free_ports
from tests.web.deployed import DEPLOY, METRICS, dashboard_queries

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus: apt install prometheus"),
]

T = TypeVar("T")
SECONDS = 120.0  # for what takes a few
PROGRAM = """
from megaflow import tumbling
from megaflow.connect import Idle


class Numbers:
    def discover(self):
        return ["a", "b"]

    def open(self, partition, position):
        return Reader(position or 0)


class Reader:
    def __init__(self, position):
        self.position, self.turn = position, False

    def read(self, limit):
        self.turn = not self.turn
        if self.turn:
            return Idle(after_seconds=0.05)
        self.position += 1
        return [self.position], self.position

    def lag(self):
        return 1000

    def close(self):
        pass


def dataflow(flow):
    views = flow.json_lines(on_error="skip").map(lambda view: (view["page"], view["at"]))
    flow.output("counted", views.count_by_key(name="count"))
    numbers = flow.read(Numbers(), "numbers").map(lambda number: (number % 7, number))
    flow.output("last", numbers.count_by_key(name="last"))
    return views.event_time(lambda view: view[1], out_of_order=5).window(tumbling(10)).count()
"""


@pytest.fixture
def job(start: Callable[..., Run], tmp_path: Path) -> tuple[Run, int]:
    """A job that has everything which a metric counts; and the port of its metrics."""
    program, lines = tmp_path / "views.py", tmp_path / "views.jsonl"
    program.write_text(PROGRAM)
    with lines.open("w") as file:
        for number in range(200_000):
            at = number / 10 - (400 if number % 50 == 49 else 0)
            file.write("broken\n" if number % 100 == 5 else f'{{"page": "p{number % 90}", "at": {at}}}\n')
    [port] = free_ports(1)
    outputs = [word for name in ("", "counted=", "last=") for word in ("--output", f"{name}none")]
    run = start(
        str(program), "--lines", str(lines), "--rate", "1000", "--processes", "2", "--name", "scraped",
        "--state", str(tmp_path / "state"), "--checkpoint-every", "1", *outputs, "--metrics", str(port),
    )  # fmt: skip
    return run, port


class Prometheus:
    """A Prometheus that scrapes a job each second and evaluates the alerts."""

    def __init__(self, folder: Path, scraped: int) -> None:
        [self.port] = free_ports(1)
        config = folder / "prometheus.yml"
        config.write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{DEPLOY / "alerts.yml"}"]
scrape_configs:
  - job_name: megaflow
    static_configs: [{{targets: ["127.0.0.1:{scraped}"]}}]
""")
        options = f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"
        with (folder / "prometheus.log").open("w") as log:
            command = ["prometheus", *options, f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **words: str) -> Any:
        """Return what an address of its interface answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """Return the value of each series that a query finds now."""
        return [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]

    def until(self, query: str) -> None:
        """Wait until a query finds a series."""
        awaited(query, lambda: self.values(query))


def awaited(what: str, found: Callable[[], T]) -> T:
    """Return the result of a function once it is true; OSError: Prometheus has not begun."""
    end, last = time.monotonic() + SECONDS, object()
    while time.monotonic() < end:
        try:
            if last := found():
                return last
        except OSError as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"{what}: {last}")


@pytest.fixture
def prometheus(job: tuple[Run, int], tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path, job[1])
    try:
        made.until("sum(megaflow_records_total) > 0")
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def test_every_query_of_dashboard_and_alerts_finds_series(job: tuple[Run, int], prometheus: Prometheus) -> None:
    run, port = job
    for words in (("move-bins", "--bins", "0-9", "--to", "1"), ("add-workers", "1")):
        assert run.control(*words).returncode == 0
    for query in (
        "sum(megaflow_bin_moves_total) >= 10", "megaflow_checkpoint_bytes_total > 0", "sum(megaflow_workers) == 3",
        "sum(megaflow_late_records_total) > 0", "rate(megaflow_bin_pause_seconds_count[1m]) > 0",
    ):  # fmt: skip
        prometheus.until(query)
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    wanted = {name + part for name, kind in METRICS.items() for part in parts.get(kind, ("",))}
    names = prometheus.ask("label/__name__/values")
    assert wanted == {name for name in names if name.startswith("megaflow_")}
    for query in dashboard_queries():
        for name, choice in (("$job", "megaflow"), ("$instance", ".*"), ("$__rate_interval", "1m"), ("$__range", "5m")):
            query = query.replace(name, choice)
        prometheus.until(query.removesuffix(" > 0"))
    rules = awaited("all rules are evaluated", lambda: evaluated(prometheus.ask("rules")["groups"][0]["rules"]))
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    prometheus.until('ALERTS{alertname="MegaflowDeadLetters", alertstate="firing"}')
    wrong = "MegaflowDown|MegaflowNoWorkers|MegaflowStalled|MegaflowRestarts|MegaflowCheckpointOld"
    assert prometheus.ask("query", query=f'ALERTS{{alertname=~"{wrong}"}}')["result"] == []
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def evaluated(rules: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the rules if all have been evaluated."""
    return rules if all(rule["health"] != "unknown" for rule in rules) else None


def test_counters_go_on_after_a_leave_and_begin_anew_after_a_loss(job: tuple[Run, int], prometheus: Prometheus) -> None:
    run, _ = job
    assert run.control("remove-workers", "--id", "1").returncode == 0
    prometheus.until("count(megaflow_bins) == 1")
    assert prometheus.values("resets(megaflow_latency_seconds_count[5m])") == [0.0], "no sum has fallen"
    assert prometheus.values("megaflow_restarts_total") == [0.0]
    os.kill(run.status()["workers"][0]["pid"], signal.SIGKILL)
    prometheus.until("megaflow_restarts_total == 1")
    prometheus.until("sum(megaflow_workers) == 1 and sum(megaflow_latency_seconds_count) > 0")
    prometheus.until('ALERTS{alertname="MegaflowRestarts", alertstate="firing"}')
    assert prometheus.values("resets(megaflow_latency_seconds_count[5m]) > 1") == [], "sums begin anew once"

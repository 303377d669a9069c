"""The demonstration that `make demo` runs: `megaflow demo`, and then two more jobs.

A slow service holds one worker back, and the job's page shows which one and why. At last a Spark program runs two
worker processes on its executors, which fold a stream of orders while half of their bins move (`spark_orders.py`).
Without Java this part is left out.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

import megaflow
from megaflow.cli.demo import count_words

SLOW_WORD = "="  # frequent, so its worker is nearly always in such a step; not the worker that coordinates
SLOW_STEP_SECONDS = 6.0  # for each
SLOW_LINES_PER_SECOND = 5_000
WATCH_SECONDS = 45.0
ORDERS = Path(__file__).with_name("spark_orders.py")


def ask_service(word: str, seconds: float) -> None:
    """Wait as for another system that takes long to answer."""
    time.sleep(seconds)


def slow_dataflow(flow: megaflow.Flow) -> megaflow.Stream[tuple[str, int]]:
    """Count words; for a while, one of them needs the answer of a slow service."""
    end = time.time() + WATCH_SECONDS

    def count_slowly(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
        if word == SLOW_WORD and (left := end - time.time()) > 0:
            ask_service(word, min(SLOW_STEP_SECONDS, left))
        total = (total or 0) + n
        return total, [(word, total)]

    pairs = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return pairs.stateful_state_machine(count_slowly, name="count")


def show_slow_worker(folder: Path) -> None:
    """Run a job with one slow word; print how busy its workers were."""
    click.echo("\nNow a slow service holds one of two workers back. Which one, and where in the program?")
    lines, rate, name = f"{folder}/*.txt", float(SLOW_LINES_PER_SECOND), f"slow-{folder.name[-6:]}"
    job = megaflow.start(slow_dataflow, lines=lines, processes=2, rate=rate, name=name, output="none", web=0)
    click.echo(f"see it for {WATCH_SECONDS:g} seconds at {job.web_url}", err=True)
    with job:
        before = {worker.id: worker for worker in job.status().workers}
        time.sleep(WATCH_SECONDS)
        after = {worker.id: worker for worker in job.status().workers}
        job.stop()
        job.wait()
    for id in before.keys() & after.keys():
        share = (after[id].busy_seconds - before[id].busy_seconds) / (after[id].now - before[id].now)
        click.echo(f"worker {id} was at work for {min(1.0, share):.0%} of the time")


def main() -> int:
    """Run all parts; return 0 if the results are right. Raises MegaflowError if the counts are wrong."""
    with tempfile.TemporaryDirectory(prefix="megaflow-demo-") as name:
        has_spark = count_words(Path(name))
        show_slow_worker(Path(name))
    if not has_spark:
        return 0
    click.echo("\nNow Spark is the engine: a stream of orders, folded on its executors while half of the bins move")
    return run_orders()


def run_orders() -> int:
    """Run the Spark program; return its exit code. The log of Java and Spark is shown only if it fails."""
    with tempfile.TemporaryFile() as log:
        code = subprocess.run([sys.executable, str(ORDERS)], stderr=log, check=False).returncode
        if code:
            log.seek(0)
            sys.stderr.write(log.read().decode("utf-8", "replace"))
        return code


if __name__ == "__main__":
    sys.exit(main())

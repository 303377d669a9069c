"""All workloads, S1 to S21 except S17, and S32, one after the other: `make bench`.

    python apps/bench/suite.py [--only S1,S4] [--repeat N] [--quick] [--text FILE] [--folder DIR] [--json FILE]

All contenders that count the same input take turns, so that a slow spell of the machine affects all of them. The table
has medians of the repetitions, with ratios and with the goals, held or missed. After each workload the results are
written as JSON and as pictures (which need matplotlib). A missed goal is reported; a wrong count is an error.
"""

import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from apps.bench.backpressure import S9
from apps.bench.combined_counts import S11, S12
from apps.bench.durable_rates import S14
from apps.bench.durable_restart import S15, S16
from apps.bench.experiment import plotter
from apps.bench.idle import S6
from apps.bench.latency import S4
from apps.bench.moving import S7, S8
from apps.bench.processor_time import S18
from apps.bench.random_keys import S3
from apps.bench.reading_share import S13
from apps.bench.report import Draw, Result, as_json, draw, summary, text
from apps.bench.rounds import S5
from apps.bench.spark_executors import S19
from apps.bench.spark_ingest import S10
from apps.bench.spark_processor import S32
from apps.bench.spark_results import S20
from apps.bench.viewers import S21
from apps.bench.wordcount import S1, S2
from apps.bench.workload import ROOT, Absent, Setting, Workload

WORKLOADS = (S1, S2, S3, S4, S5, S6, S7, S8, S9, S10, S11, S12, S13, S14, S15, S16, S18, S19, S20, S21, S32)
REPEAT, REPEAT_QUICK = 5, 2


def carry_out(workload: Workload, setting: Setting, repeat: int) -> Result:
    """Run a workload's contenders in turn, several times. A contender that fails is noted and left out from then on."""
    result = Result(workload.id, workload.title, workload.base, workload.goals, workload.notes)
    times = min(repeat, workload.repeat_max or repeat)
    try:
        steps = list(workload.open(setting))
    except Absent as absence:
        result.absent["all"] = str(absence)
        return result
    for turn in range(times):
        for step in [step for step in steps if turn < (step.times_max or times)]:
            say(f"[{workload.id} {turn + 1}/{times}] {step.name}")
            try:
                result.add(step.run())
            except Absent as absence:
                result.absent[step.name] = str(absence)
                steps.remove(step)
            except Exception as error:
                traceback.print_exc()
                result.wrong.append(f"{step.name}: {type(error).__name__}: {error}")
                steps.remove(step)
    return result


def run_workload(workload: Workload, quick: bool, text: Path | None, repeat: int) -> Result:
    """Run a workload in a folder of its own."""
    drawings: dict[str, Draw] = {}
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder, ExitStack() as stack:
        result = carry_out(workload, Setting(quick, Path(folder), stack, text, drawings=drawings), repeat)
    result.drawings = drawings
    return result


def chosen(only: str) -> Sequence[Workload]:
    """Return the workloads with these ids, or all without ids. Raises BadParameter.

    >>> [workload.id for workload in chosen("S4, s1")]
    ['S1', 'S4']
    """
    names = {name.strip().upper() for name in only.split(",") if name.strip()}
    if unknown := names - {workload.id for workload in WORKLOADS}:
        known = ", ".join(workload.id for workload in WORKLOADS)
        raise click.BadParameter(f"no workload {', '.join(sorted(unknown))}; there are {known}")
    return [workload for workload in WORKLOADS if not names or workload.id in names]


def machine() -> dict[str, Any]:
    """Return a description of the machine and the software."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def picture(result: Result, folder: Path, figure_of: Any) -> None:
    """Write the pictures of a workload."""
    drawings: dict[str, Draw] = {result.id: partial(draw, result)} if result.found else {}
    drawings |= {f"{result.id}-{name}": each for name, each in result.drawings.items()}
    for name, each in drawings.items():
        figure = figure_of()
        each(figure)
        figure.savefig(folder / f"{name}.png")


def say(what: str) -> None:
    """Print progress to standard error, apart from the results."""
    click.echo(what, err=True)


@click.command()
@click.option("--only", default="", metavar="S1,S4", help="These workloads; all without it.")
@click.option("--repeat", type=click.IntRange(1), help=f"Repetitions: {REPEAT}, with --quick {REPEAT_QUICK}.")
@click.option("--quick", is_flag=True, help="Small sizes, which show only that everything works.")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="To count words of.")
@click.option("--folder", default=ROOT / "bench-results", type=click.Path(file_okay=False, path_type=Path),
              help="Where JSON and pictures go; without it bench-results.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Where the JSON goes instead.")  # fmt: skip
def main(
    only: str, repeat: int | None, quick: bool, text: Path | None, folder: Path, json_path: Path | None
) -> None:
    """Run the workloads of the suite, compared with the plain Python loop and with the other systems installed."""
    workloads = chosen(only)
    folder.mkdir(parents=True, exist_ok=True)
    path = json_path or folder / "results.json"
    times = repeat or (REPEAT_QUICK if quick else REPEAT)
    record: dict[str, Any] = {"machine": machine(), "quick": quick, "repeat": times, "workloads": {}}
    try:
        figure_of = plotter()
    except click.ClickException:
        figure_of = None
        say("no pictures: matplotlib is not installed (pip install 'megaflow[plots]')")
    results = []
    for workload in workloads:
        result = run_workload(workload, quick, text and text.absolute(), times)
        results.append(result)
        show(result)
        record["workloads"][workload.id] = as_json(result)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if figure_of is not None:
            picture(result, folder, figure_of)
    click.echo(summary(results))
    say(f"written: {path}")
    if wrong := [f"{result.id} {each}" for result in results for each in result.wrong]:
        raise click.ClickException("; ".join(wrong))


def show(result: Result) -> None:
    """Print the table of a workload."""
    click.echo(text(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())

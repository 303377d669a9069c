"""S11 and S12: word counts by `count_by_value`, which emits the count of a word once per epoch.

The plain loop is the one of S1 and has every new count. Pathway also combines counts. Outputs are not collected during
the timed runs. A separate run over a short text first checks that the counts are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from apps.bench.report import Found, Goal
from apps.bench.wordcount import COPIES, COPIES_QUICK, MEGA, ONE, RATE, TWO, peer_step, plain_step, write_text
from apps.bench.workload import PLAIN, Setting, Step, Workload, check_count, one
from megaflow.job.launcher.outputs.writer import ListWriter
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec

LINES_CHECKED = 2000


def dataflow(flow: Any) -> Any:
    """Count words."""
    return flow.lines().flat_map(str.split).count_by_value()


def job_step(name: str, lines: str, words: int, processes: int) -> Step:
    """Return the step that times megaflow."""

    def run() -> Found:
        account = launch(LaunchOptions(JobSpec(pickle_app(dataflow), processes=processes), lines))
        return one(name, {RATE: words / account.flow_seconds / MEGA})

    return Step(name, run)


def check_step(setting: Setting, lines: Sequence[str], processes: int) -> Step:
    """Return a step that times nothing and checks that the last count of each word is right."""
    path = setting.folder / "checked.txt"
    path.write_text("".join(lines), encoding="utf-8")

    def run() -> Found:
        writer = ListWriter()
        launch(LaunchOptions(JobSpec(pickle_app(dataflow), processes=processes), str(path), lambda: writer))
        wrong = dict(writer.records).items() ^ Counter("".join(lines).split()).items()
        check_count("counts that are wrong", len(wrong), 0)
        return {}

    return Step("counts are right", run, times_max=1)


def open_with(setting: Setting, processes: int) -> Sequence[Step]:
    """Write the text; return the contenders with that many processes."""
    path = setting.folder / "text.txt"
    words = write_text(setting.text, setting.size(COPIES, COPIES_QUICK), path)
    with path.open(encoding="utf-8", errors="replace") as text:
        lines = [line for line, _ in zip(text, range(LINES_CHECKED))]
    two = [job_step(TWO, f"{path}?unordered", words, 2)] if processes > 1 else []
    return (
        check_step(setting, lines, processes),
        plain_step(path, words),
        job_step(ONE, str(path), words, 1),
        *two,
        peer_step(setting, "pathway_wordcount.py", f"Pathway, {processes} processes", path, str(processes)),
    )


S11 = Workload(
    "S11",
    "word count by count_by_value, one process",
    lambda setting: open_with(setting, 1),
    (Goal(ONE, RATE, 1.4, at_least=True, of=(PLAIN,)),),
    notes=("the plain loop has every new count; megaflow and Pathway have one for a word and epoch",),
)
S12 = Workload(
    "S12",
    "word count by count_by_value, two processes",
    lambda setting: open_with(setting, 2),
    (Goal(TWO, RATE, 1.6, at_least=True, of=(ONE,)),),
    notes=("?unordered: each process reads pieces of the file",),
)

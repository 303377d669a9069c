"""The folder of a profile: checked and cleared before a run, read and summed up after it.

Each worker writes its own file there (see `megaflow.job.profile.worker_profile`), even if it joins later or leaves
early. The launcher reads the files when no process of the run is left, however the run ended. Killed workers may not
have written their last measurements. An error in writing the profile is reported, and does not change the run's result.

Only a profile's own files are ever removed: a folder with other files is refused.
"""

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from megaflow.control.wording import Notice, quantity
from megaflow.errors import UsageError
from megaflow.job.profile.ledger import ENGINE, Call, Tally, WorkerRecord
from megaflow.job.spec import ProfileSpec
from megaflow.own_files import close_own, open_own

WITNESS = ".seen-by-executors"  # begins the name of a file that executors must see in the folder
OURS = re.compile(rf"worker-\d+\.(json|new|pstats)|operators\.(json|txt)|calls\.txt|{re.escape(WITNESS)}.*")
TABLE, RECORDS, CALLS = "operators.txt", "operators.json", "calls.txt"
TOP = 3  # operators that are reported at the end of a run
FUNCTIONS_SHOWN = 10  # of each operator
MONITORED = (3, 12)  # from this Python on, a process can have only one cProfile at a time
COUNTS = ("activations", "batches_in", "records_in", "batches_out", "records_out")

HEAD = """\
At any moment a worker is in one operator or in one part of the engine, so the rows add up to its wall time. With
several workers in a process, or on a busy machine, part of that time is spent waiting for a processor. Activations
are the number of runs. A record that goes to several places counts once for each of them.
"""

CALLS_TAKEN = """\
cProfile (--profile-calls) slows down every call of a Python function, so operators that make many small calls look
heavier than they are. For true proportions, run with --profile alone.
"""


def profile_spec(folder: str | os.PathLike[str] | None, calls: bool = False) -> ProfileSpec | None:
    """Return the profile that --profile and --profile-calls ask for. Raises UsageError for the second flag alone."""
    if folder is None:
        if calls:
            raise UsageError("--profile-calls extends a profile: add --profile.")
        return None
    if not os.fspath(folder):
        raise UsageError("--profile '': Name a folder.")
    return ProfileSpec(os.path.abspath(folder), calls)


def check_profile(spec: ProfileSpec | None, workers: int) -> None:
    """Raise UsageError if the folder cannot take a profile, or this Python cannot profile several workers at once."""
    if spec is None:
        return
    if spec.calls and workers > 1 and sys.version_info >= MONITORED:
        raise UsageError(
            "--profile-calls: This Python can profile only one worker per process. Use --processes instead of "
            "--workers."
        )
    folder = Path(spec.folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--profile {spec.folder}: This is not a folder. Name a new one, or put --profile last.")
    other = next((path.name for path in sorted(folder.iterdir()) if not OURS.fullmatch(path.name)), None)
    if other is not None:
        raise UsageError(f"--profile {spec.folder}: The folder has other files, such as {other!r}. Name a new folder.")


@contextlib.contextmanager
def profile_folder(spec: ProfileSpec | None, report: Callable[[str], None]) -> Iterator[None]:
    """Prepare the folder for a run, which is the block. Then sum up the workers' files, and `report` the main results.

    Nothing happens without a `spec`. Raises UsageError if the folder cannot be made or written to, or if another run
    writes its profile there.
    """
    if spec is None:
        yield
        return
    check_profile(spec, workers=1)
    folder = Path(spec.folder)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = open_own(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(close_own, lock)
            _lock(lock)
            for path in folder.iterdir():
                path.unlink()
            (folder / TABLE).write_text("The run has not ended yet.\n", encoding="utf-8")
        except BlockingIOError as error:
            raise UsageError(
                f"--profile {spec.folder}: Another run is writing its profile there. Wait until it has ended, or "
                "name another folder."
            ) from error
        except OSError as error:
            raise UsageError(f"--profile {spec.folder}: {error.strerror or error}") from error
        try:
            yield
        finally:
            try:
                sum_up(folder, spec.calls, report)
            except (OSError, ValueError, TypeError, KeyError) as error:
                report(f"cannot summarize the profile in {spec.folder}: {error}")


def _lock(folder: int) -> None:
    """Lock a folder until it is closed, if the file system has locks. Raises BlockingIOError if another run has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            raise


def sum_up(folder: Path, calls: bool, report: Callable[[str], None]) -> None:
    """Write the summary of all workers' files, and report the main results."""
    records = read_records(folder)
    if not records:
        (folder / TABLE).write_text("No worker ran long enough to write a profile.\n", encoding="utf-8")
        report(f"no profile in {folder}: no worker ran long enough to write one")
        return
    (folder / TABLE).write_text(table_text(records, calls), encoding="utf-8")
    (folder / RECORDS).write_text(json.dumps(as_json(records), indent=1) + "\n", encoding="utf-8")
    if calls:
        (folder / CALLS).write_text(calls_text(merge(records)), encoding="utf-8")
    for line in top_lines(records, folder / TABLE):
        report(Notice(line))


def read_records(folder: Path) -> list[WorkerRecord]:
    """Return the records that workers have written, in the order of their ids."""
    records = []
    for path in folder.glob("worker-*.json"):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(Tally(**{**row, "calls": tuple(map(tuple, row["calls"]))}) for row in content["rows"])
        records.append(WorkerRecord(**{**content, "rows": rows}))
    return sorted(records, key=lambda record: record.worker)


def merge(records: Iterable[WorkerRecord]) -> list[Tally]:
    """Return the rows of all workers together, most time first."""
    rows: dict[tuple[str, str, int, int], Tally] = {}
    for record in records:
        for row in record.rows:
            key = row.kind, row.name, row.dataflow, row.operator
            rows[key] = row if key not in rows else _sum(rows[key], row)
    return sorted(rows.values(), key=lambda row: -row.seconds)


def _sum(left: Tally, right: Tally) -> Tally:
    sums = {name: getattr(left, name) + getattr(right, name) for name in (*COUNTS, "seconds")}
    functions: dict[tuple[str, str], Call] = {}
    for name, where, calls, own, total in (*left.calls, *right.calls):
        _, _, *before = functions.get((name, where), (name, where, 0, 0.0, 0.0))
        functions[name, where] = name, where, calls + int(before[0]), own + before[1], total + before[2]
    return replace(left, **sums, calls=tuple(sorted(functions.values(), key=lambda call: -call[3])))


# The files of the summary


def as_json(records: Sequence[WorkerRecord]) -> dict[str, Any]:
    """Return the sums over all workers, and each worker's rows. Each row has its share of these seconds."""

    def with_share(row: Tally, whole: float) -> dict[str, Any]:
        return {**asdict(row), "share": share(row.seconds, whole)}

    seconds = sum(record.seconds for record in records)
    return {
        "seconds": seconds,
        "rows": [with_share(row, seconds) for row in merge(records)],
        "workers": [
            {**asdict(record), "rows": [with_share(row, record.seconds) for row in merge([record])]}
            for record in records
        ],
    }


def share(seconds: float, whole: float) -> float:
    """Return `seconds` as a part of the whole; 0 if the whole is 0.

    >>> share(1.0, 4.0), share(0.0, 0.0)
    (0.25, 0.0)
    """
    return seconds / whole if whole else 0.0


def table_text(records: Sequence[WorkerRecord], calls: bool) -> str:
    """Return the tables: one of each worker and, if there are several, first one of all workers together."""
    parts = [HEAD]
    if calls:
        parts.append(CALLS_TAKEN)
    if len(records) > 1:
        seconds = sum(record.seconds for record in records)
        parts.append(f"All {len(records)} workers: {seconds:.2f} s\n\n{_table(merge(records), seconds)}")
    for record in records:
        end = "" if record.ended else "; it was killed, so this is the last profile it wrote"
        busy = f"{record.processor_seconds:.2f} s of it on a processor"
        title = f"Worker {record.worker} (process {record.pid}): {record.seconds:.2f} s, {busy}{end}"
        parts.append(f"{title}\n\n{_table(merge([record]), record.seconds)}")
    parts.append("The engine's rows:\n" + "".join(f"  {name}: {what}\n" for name, what in ENGINE.items()))
    return "\n".join(parts)


def _table(rows: Iterable[Tally], whole: float) -> str:
    head = ("seconds", "share", *(name.replace("_", " ") for name in COUNTS), "row")
    lines = [head]
    for row in rows:
        counts = [f"{getattr(row, name):,}" for name in COUNTS]
        if row.kind == "engine":
            counts[1:] = [""] * (len(counts) - 1)
        lines.append((f"{row.seconds:.3f}", f"{share(row.seconds, whole):.1%}", *counts, title(row)))
    lines.append((f"{whole:.3f}", f"{share(whole, whole):.1%}", *("" for _ in COUNTS), "all"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    return "".join(
        "  ".join((*(cell.rjust(width) for cell, width in zip(line[:-1], widths)), line[-1])) + "\n" for line in lines
    )


def title(row: Tally) -> str:
    """Return the name of a row for people; for an operator, with the line that declared it.

    >>> title(Tally("operator", "Map", "app.py:3")), title(Tally("engine", "parked"))
    ('Map (app.py:3)', '[parked]')
    """
    if row.kind == "engine":
        return f"[{row.name}]"
    return f"{row.name} ({row.where})" if row.where else row.name


def calls_text(rows: Iterable[Tally]) -> str:
    """Return for each operator the functions that took the most time themselves."""
    parts = [CALLS_TAKEN]
    for row in rows:
        if not row.calls:
            continue
        name = title(row) if row.kind == "operator" else "[the engine]"
        parts.append(f"{name}\n{'own s':>10} {'with inner':>10} {'calls':>12}  function\n")
        for function, where, calls, own, total in row.calls[:FUNCTIONS_SHOWN]:
            place = f" ({where})" if where else ""
            parts[-1] += f"{own:10.3f} {total:10.3f} {calls:12,}  {function}{place}\n"
    return "\n".join(parts)


def top_lines(records: Sequence[WorkerRecord], path: Path) -> list[str]:
    """Return a few lines: where the profile is, and which operators took the most time."""
    whole = sum(record.seconds for record in records)
    operators = [row for row in merge(records) if row.kind == "operator"][:TOP]
    return [
        f"profile of {quantity(len(records), 'worker')}, {whole:.2f} s: {path}",
        *(f"  {share(row.seconds, whole):6.1%} {row.seconds:8.2f} s  {title(row)}" for row in operators),
    ]

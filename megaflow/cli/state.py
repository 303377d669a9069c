"""The commands of `megaflow state`, which look at a store of durable state; a job may be using it or not."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import click

from megaflow.cli.help import Command
from megaflow.cli.json_records import to_json
from megaflow.cli.options import answer, option, runtime_dir, ticked
from megaflow.cli.text import bytes_text, table_text
from megaflow.control.launcher_messages import DropName, NameDropped
from megaflow.control.wording import quantity
from megaflow.durable.commits import Commit, input_of, is_of_a_batch
from megaflow.durable.incarnation import drop_name, read_commits
from megaflow.durable.inspection import StoreContent, inspect, verify, way_out
from megaflow.durable.local_folder import LocalFolder, lock_holder, open_for_a_job, open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError, naming
from megaflow.job.admin_socket import ask_launcher
from megaflow.job.job_file import Job, present

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path())
DROP_SECONDS = 30.0  # for the launcher, which may be committing
AS_JSON = option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("ls", cls=Command)
@DIRECTORY
@AS_JSON
def list_checkpoints(directory: str, as_json: bool) -> None:
    """List the checkpoints of a store, oldest first.

    DIR is the --state folder of a job. A job resumes from the last checkpoint of the list. The command reads no
    segments. The exit code is 1 if a commit is damaged, or was written by another version.
    """
    with looking_at(directory) as folder:
        content = inspect(Store(folder))
    answer(to_json(store_record(directory, content)) if as_json else content_text(directory, content))
    raise_damage(directory, content)


@click.command("verify", cls=Command)
@DIRECTORY
@AS_JSON
def verify_store(directory: str, as_json: bool) -> None:
    """Check the files of a store against their checksums.

    The command reads every segment that a checkpoint in DIR names. If anything is damaged, it prints the file and the
    place, and the exit code is 1.
    """
    with looking_at(directory) as folder:
        store = Store(folder)
        names = {segment.name for commit in inspect(store).commits for segment in commit.files}
        with ticked(len(names), "reading segments") as checked:
            content = verify(store, checked)
    if as_json:
        answer(to_json(store_record(directory, content)))
    elif not content.damage:
        segments = {segment for commit in content.commits for segment in commit.files}
        size = bytes_text(sum(segment.length for segment in segments))
        checkpoints = quantity(len(content.commits), "checkpoint")
        answer(f"{directory} is sound: {checkpoints}, {quantity(len(segments), 'segment')}, {size}")
    raise_damage(directory, content)


@click.command("rm", cls=Command)
@DIRECTORY
@click.argument("name", metavar="NAME")
@runtime_dir
@AS_JSON
def remove_name(directory: str, name: str, as_json: bool) -> None:
    """Remove the name of a checkpoint.

    \b
      megaflow state rm kept nightly

    The checkpoint is then deleted in its turn, like one that never had a name. If a job is using DIR, run the command
    on the machine where the job was started.
    """
    open_to_look(directory).close_folder()  # `open_for_a_job` would create a missing store
    try:
        folder = open_for_a_job(directory)
    except StoreError as error:
        if (job := job_of(directory)) is None:
            if error.__cause__ is not None or (holder := lock_holder(directory)) is None:
                raise  # not its lock, or a job of another machine
            raise StoreError(
                f"the store {directory} is in use by process {holder} on {socket.gethostname()}, of which there is no "
                "job file: name its folder by --runtime-dir"
            ) from error
        answered = ask_launcher(job, DropName(name), NameDropped, DROP_SECONDS)
        if answered.refused is not None:
            raise StoreError(answered.refused) from None
    else:
        with closing(Store(folder)) as store, naming(StoreError, f"Cannot write to the store {directory!r}"):
            drop_name(store, name)
    gone = f"removed the name {name!r} from {directory}"
    answer(to_json({"store": directory, "removed": name}) if as_json else gone)


def job_of(directory: str) -> Job | None:
    """Return the job on this machine that holds the lock of a store, if there is one."""
    pid = lock_holder(directory)
    return next((job for job, alive in present() if alive and job.pid == pid), None)


def last_checkpoint(folder: str) -> int | None:
    """Return the checkpoint from which a stopped job resumes.

    None: all its lines were read, or the store has no checkpoint or cannot be read.
    """
    try:
        with looking_at(folder) as store:
            newest = read_commits(Store(store))[0]
    except (StoreError, IndexError):  # whatever is wrong there, the job has stopped
        return None
    return None if newest.ended else newest.checkpoint or None


@contextmanager
def looking_at(directory: str) -> Iterator[LocalFolder]:
    """Open a store to look at it. Raises StoreError if the folder is no store, or cannot be read."""
    folder = open_to_look(directory)
    try:
        yield folder
    except BrokenPipeError:  # the reader of our output has closed it
        raise
    except OSError as error:
        path = os.path.join(directory, str(error.filename)) if error.filename else directory
        raise StoreError(f"Cannot read {path!r}: {error.strerror}.") from error
    finally:
        folder.close_folder()


def raise_damage(directory: str, content: StoreContent) -> None:
    """Raise StoreError if something in the store is wrong."""
    if content.damage:
        found = "\n  ".join(content.damage)
        rest = f"\n{way}." if (way := way_out(directory, content)) else ""
        raise StoreError(f"The store {directory!r} has {quantity(len(content.damage), 'fault')}:\n  {found}{rest}")


def content_text(directory: str, content: StoreContent) -> str:
    """Return what is in a store as a table."""
    now = time.time()
    rows = [
        [commit.checkpoint, commit.time, age_text(now - commit.written_at) if commit.checkpoint else "-",
         commit.incarnation, len(commit.files),
         sum(segment.keys for segment in commit.segments),
         bytes_text(sum(segment.length for segment in commit.files)), "yes" if commit.ended else "no",
         ", ".join(names_of(content, commit))]
        for commit in content.commits
    ]  # fmt: skip
    newest = content.commits[-1] if content.commits else None
    parts = [f"store {directory}{f' of {newest.app}' if newest else ''}: {bytes_text(content.bytes)}"]
    if rows:
        head = ["checkpoint", "epoch", "age", "incarnation", "segments", "keys written", "size", "ended", "name"]
        parts.append(table_text(head, rows))
    operators = newest.operators if newest else ()
    parts += [f"operator {each.name}: {quantity(len(each.bases), 'bin')}" for each in operators]
    parts += [] if newest is None else [query_text(newest, *each) for each in newest.spark]
    if content.unnamed and not content.damage:
        files = quantity(len(content.unnamed), "file")
        parts.append(f"{files} in no checkpoint: being written, or left by a crash")
    return "\n".join(parts)


def query_text(commit: Commit, query: str, batch: int) -> str:
    """Return which batches of a Spark query are in a commit.

    >>> query_text(Commit(7, 3, 41, 2), "orders-0123abcd", 5), query_text(Commit(7, 3, 41, 2), "regions-batch", 0)
    ("Spark batches of the rows 'orders' up to 5", "Spark's batch DataFrame 'regions'")
    """
    lines = sum(each.lines for each in commit.untaken if each.query in (query, ""))
    left = f"; {quantity(lines, 'line')} of that batch still to be processed" if lines else ""
    if is_of_a_batch(query):
        return f"Spark's batch DataFrame {input_of(query)!r}{left}"
    rows = f" of the rows {input!r}" if (input := input_of(query)) else ""
    return f"Spark batches{rows} up to {batch}{left}"


def names_of(content: StoreContent, commit: Commit) -> list[str]:
    """Return the names of a checkpoint: the newest commit has them all."""
    return [name for name, number in content.commits[-1].named if number == commit.number]


def age_text(seconds: float) -> str:
    """Return how long ago something was.

    >>> age_text(4.6), age_text(200), age_text(9000), age_text(250_000)
    ('5 s', '3 min', '2.5 h', '2.9 days')
    """
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def store_record(directory: str, content: StoreContent) -> dict[str, Any]:
    """Return what is in a store for `--json`."""
    return {
        "store": directory,
        "bytes": content.bytes,
        "checkpoints": [checkpoint_record(commit, names_of(content, commit)) for commit in content.commits],
        "unnamed": content.unnamed,
        "damage": content.damage,
    }


def checkpoint_record(commit: Commit, names: list[str]) -> dict[str, Any]:
    """Return a checkpoint for `--json`."""
    return {
        "checkpoint": commit.checkpoint,
        "names": names,
        "commit": commit.number,
        "epoch": commit.time,
        "app": commit.app,
        "written_at": commit.written_at,
        "incarnation": commit.incarnation,
        "ended": commit.ended,
        "operators": [{"name": operator.name, "bins": len(operator.bases)} for operator in commit.operators],
        "segments": [
            {"file": segment.name, "checkpoint": segment.checkpoint, "worker": segment.worker,
             "bytes": segment.length, "keys": segment.keys}
            for segment in commit.segments
        ],
        "spark": [{"query": query, "batch": batch} for query, batch in commit.spark],
        "untaken": [
            {"file": each.segment.name, "lines": each.lines, "query": each.query} for each in commit.untaken
        ],
        "outputs": [{"output": each.output, "bytes": each.length} for each in commit.outputs],
    }  # fmt: skip


COMMANDS = (list_checkpoints, verify_store, remove_name)

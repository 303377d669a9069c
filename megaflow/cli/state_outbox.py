"""`megaflow state outbox`: the records that wait in a store for a sink, and a way past one that its system refuses."""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click

from megaflow.cli.built_program import AppOperators
from megaflow.cli.options import ArgsCommand, answer, option, repeated
from megaflow.cli.state import AS_JSON, DIRECTORY, looking_at
from megaflow.cli.state_reading import APP, ARGS
from megaflow.control.wording import quantity
from megaflow.durable.copying import copy_store, open_to_copy
from megaflow.durable.local_folder import open_for_a_job, open_to_look
from megaflow.durable.outbox import DROPPED, Waiting, rewrite, waiting
from megaflow.durable.reading import open_checkpoint
from megaflow.durable.store import Store
from megaflow.errors import ProgramError, ProtocolError, StoreError, UsageError, naming
from megaflow.job.worker.writing.json_lines import state_text


@click.command("outbox", cls=ArgsCommand)
@DIRECTORY
@ARGS
@repeated("--drop", env="OUTBOX_DROP", metavar="RECORD", help="Drop this record, which is then never delivered.")
@option("--rewrite", env="OUTBOX_REWRITE", nargs=2, metavar="RECORD JSON",
        help="Deliver JSON in place of this record.")  # fmt: skip
@option("--backup", env="OUTBOX_BACKUP", metavar="NEW", type=click.Path(),
        help="Copy the store here before changing it; by default DIR.before-N.")  # fmt: skip
@APP
@AS_JSON
def outbox(
    directory: str, args: tuple[str, ...], drop: tuple[str, ...], rewrite: tuple[str, str] | None, backup: str | None,
    app: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show, drop or rewrite records that wait for a sink.

    \b
      megaflow state outbox kept
      megaflow state outbox kept --drop 5f3a91c2:3
      megaflow state outbox kept --rewrite 5f3a91c2:3 '["Ada", 700]'

    If a database refuses a record, every run that resumes from DIR stops at it. Change the table, or drop or rewrite
    the record here. In the JSON of --rewrite, an array stands for a tuple. It needs the columns of the record or, with
    --app, those of the sink.

    No job may be using DIR while you change it. The command first copies the store to a folder from which a job can
    resume. It shows the records of the newest checkpoint, which can include delivered ones. To drop a delivered record
    changes nothing.
    """
    program = AppOperators(app, args) if app is not None else None
    changes = changes_of(drop, rewrite)
    try:
        if changes:
            change(directory, changes, backup, program, as_json)
        else:
            show(directory, as_json)
    except ProtocolError as error:
        raise StoreError(f"{error}. If the records have classes of the program, name it with --app FILE.") from error


def show(directory: str, as_json: bool) -> None:
    """Print what waits."""
    with looking_at(directory) as folder:
        commit = open_checkpoint(folder)
        found = list(waiting(Store(folder), commit))
    if as_json:
        records = [{"record": each.name, "sink": each.sink, "value": state_text(each.record, "json")} for each in found]
        answer(json.dumps([{**each, "value": json.loads(each["value"])} for each in records]))
        return
    for each in found:
        answer(f"{each.name}  {each.sink}  {each.record!r:.500}")
    if not found:
        answer(f"No record waits in {directory}.")


def changes_of(drop: tuple[str, ...], rewrite: tuple[str, str] | None) -> dict[str, Any]:
    """Return the new value of each record that changes. Raises UsageError.

    >>> changes_of((), ("5f3a91c2:3", '["a", 1]'))
    {'5f3a91c2:3': ('a', 1)}
    """
    changes = dict.fromkeys(drop, DROPPED)
    if rewrite is not None:
        name, text = rewrite
        try:
            record = json.loads(text)
        except ValueError as error:
            said = f"--rewrite {name}: '{text:.200}' is not JSON ({error}). Write strings in double quotes."
            raise UsageError(said) from None
        changes[name] = tuple(record) if isinstance(record, list) else record
    return changes


def check_row(record: Waiting, value: Any, program: AppOperators | None) -> None:
    """Raise UsageError if a value cannot take the place of a record. The sink decides, if the program is known.

    Otherwise the record shows how many columns the sink has, and perhaps their names.
    """
    if program is not None:
        try:
            program.check_record(record.sink, value)
        except ProgramError as error:
            raise UsageError(f"--rewrite {record.name}: The sink {record.sink!r} refuses this: {error}.") from error
        return
    (had, names), (has, others) = columns_of(record.record), columns_of(value)
    if had and (has != had or (names and others and names != others)):
        raise UsageError(
            f"--rewrite {record.name}: Give {quantity(had, 'column')}, as the record {record.record!r:.200} has. If "
            "its sink takes other records, name the program with --app FILE."
        )


def columns_of(record: Any) -> tuple[int, frozenset[Any]]:
    """Return how many columns a row has, and their names if it has them; 0 for what is no row.

    >>> columns_of(("Ada", 700)), columns_of({"name": "Ada"}), columns_of("Ada")
    ((2, frozenset()), (1, frozenset({'name'})), (0, frozenset()))
    """
    match record:
        case Mapping():
            return len(record), frozenset(record)
        case tuple() | list():
            return len(record), frozenset(getattr(record, "_fields", ()))
    return 0, frozenset()


def change(
    directory: str, changes: dict[str, Any], backup: str | None, program: AppOperators | None, as_json: bool
) -> None:
    """Copy the store, change it, and print that."""
    open_to_look(directory).close_folder()  # `open_for_a_job` would make a store
    folder = open_for_a_job(directory)
    with closing(Store(folder)) as store, naming(StoreError, f"Cannot change the store {directory!r}"):
        commits = open_to_copy(folder)
        there = {each.name: each for each in waiting(store, commits[-1]) if each.name in changes} if commits else {}
        if missing := sorted(changes.keys() - there.keys()):
            hint = f"'megaflow state outbox {directory}' shows those that do."
            raise StoreError(f"No record '{missing[0]}' waits in {directory}. {hint}")
        for name, value in changes.items():
            if value is not DROPPED:
                check_row(there[name], value, program)
        copy = backup or f"{directory.rstrip('/')}.before-{commits[-1].number}"
        copy_store(folder, commits, copy)
        commit = rewrite(store, changes)
    record = {"store": directory, "changed": sorted(changes), "backup": copy, "checkpoint": commit.checkpoint}
    dropped = sum(value is DROPPED for value in changes.values())
    counts = ("dropped", dropped), ("rewrote", len(changes) - dropped)
    done = " and ".join(f"{verb} {quantity(count, 'record')}" for verb, count in counts if count)
    said = f"{done.capitalize()} of checkpoint {commit.checkpoint}. The unchanged store is in {copy}."
    answer(json.dumps(record) if as_json else said)


COMMANDS = (outbox,)

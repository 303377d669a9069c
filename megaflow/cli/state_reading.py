"""The commands of `megaflow state` that read the contents of a store: `get`, `export` and `copy`.

Nothing in a store is run, and no class is loaded unless --app names a program. States of unknown classes are shown by
the names of their types and their size.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from megaflow.cli.built_program import AppOperators
from megaflow.cli.help import Command
from megaflow.cli.options import ArgsCommand, answer, check_output, counted, option, say, ticked
from megaflow.cli.state import AS_JSON, DIRECTORY, looking_at
from megaflow.cli.text import bytes_text
from megaflow.control.coordinator.controller.lookups import keys_meant
from megaflow.control.wording import quantity
from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.copying import copy_store, open_to_copy, segments_of
from megaflow.durable.local_folder import LocalFolder
from megaflow.durable.reading import OperatorStates, Unreadable, find_operator, open_checkpoint
from megaflow.errors import MegaflowError, ProgramError, StoreDamaged, StoreError, UsageError, naming, similar
from megaflow.job.kept_states import json_text, shown
from megaflow.job.worker.writing.json_lines import to_json
from megaflow.megaphone.base.bins import BinStore

CHECKPOINT = option("--checkpoint", metavar="N|NAME",
                    help="Use this checkpoint; by default the newest one.")  # fmt: skip
APP = option("--app", metavar="FILE|MODULE[:FUNCTION]",
             help="Load the classes and hash functions of this program.")  # fmt: skip
ARGS = click.argument("args", nargs=-1, metavar="[-- ARGS...]")


@click.command("get", cls=ArgsCommand, context_settings={"ignore_unknown_options": True})  # a KEY may be -7
@DIRECTORY
@click.argument("operator", metavar="OPERATOR")
@click.argument("key", metavar="KEY")
@ARGS
@CHECKPOINT
@APP
@AS_JSON
def get_state(
    directory: str, operator: str, key: str, args: tuple[str, ...], checkpoint: str | None, app: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the state of one key.

    \b
      megaflow state get kept count river
      megaflow state get kept orders '["Ada", 7]' --app orders.py

    KEY is JSON, in which an array stands for a tuple. A KEY that is not JSON, or that has no state as JSON, is read as
    a string. If the key has no state, the exit code is 1 and --json prints null.

    Name the program with --app if it has a hash= function of its own, or states of its own classes. The command then
    builds its dataflow, with ARGS.
    """
    operators = AppOperators(app, args) if app is not None else None
    with looking_at(directory) as folder:
        commit = open_checkpoint(folder, checkpoint)
        states = states_of(folder, commit, find_operator(commit, operator), operators)
        for meant in keys_meant(key):
            if (state := states.find(meant)) is not None:
                record = {"operator": operator, "key": meant, "state": shown(state), "checkpoint": commit.checkpoint}
                answer(json_text(operator, meant, record) if as_json else state_text(state))
                return
        if as_json:
            nothing = {"operator": operator, "key": next(keys_meant(key)), "state": None}
            answer(json_text(operator, key, {**nothing, "checkpoint": commit.checkpoint}))
        raise StoreError(absence(states, commit, operator, key))


def absence(states: OperatorStates, commit: Commit, operator: str, key: str) -> str:
    """Return an error that names the missing key and a similar one. Cost: reads the operator's states."""
    keys = [key for _, found in states.by_bin() for key in found]
    near = similar(key, [each for each in keys if isinstance(each, str)])
    hint = f". Did you mean {near!r}?" if near else f", such as {key_text(keys[0]):.80}." if keys else "."
    count = quantity(len(keys), "key")
    return f"Operator {operator!r} has no key {key!r} at checkpoint {commit.checkpoint}. It has {count}{hint}"


def key_text(key: Any) -> str:
    """Return a key as it is given on the command line.

    >>> key_text(("Ada", 7)), key_text("river"), key_text(b"1")
    ('["Ada", 7]', '"river"', "b'1'")
    """
    try:
        return to_json(key)
    except ProgramError:
        return repr(key)


@click.command("export", cls=ArgsCommand)
@DIRECTORY
@click.argument("operator", metavar="[OPERATOR]", required=False)
@ARGS
@option("--output", env="EXPORT_OUTPUT", metavar="FILE", type=click.Path(dir_okay=False),
        help="Write to this new file instead of standard output; '-' is standard output.")  # fmt: skip
@CHECKPOINT
@APP
def export_states(
    directory: str, operator: str | None, args: tuple[str, ...], output: str | None, checkpoint: str | None,
    app: str | None,
) -> None:  # fmt: skip
    """Print the state of each key as a line of JSON.

    \b
      megaflow state export kept count --output states.jsonl

    Each line is an object: {"operator": "count", "key": "river", "state": 10}. Without OPERATOR, the command prints
    the states of all operators. Keys and states have the same form as with `megaflow run --output jsonl:PATH`. Timers
    are not printed.

    Name the program with --app if it has a hash= function of its own, or states of its own classes. The command then
    builds its dataflow, with ARGS.
    """
    operators = AppOperators(app, args) if app is not None else None
    path = None if output == "-" else output
    with looking_at(directory) as folder:
        commit = open_checkpoint(folder, checkpoint)
        chosen = commit.operators if operator is None else [find_operator(commit, operator)]
        keys = 0
        with open_output(path) as write:
            for cut in chosen:
                states = states_of(folder, commit, cut, operators)
                with counted(states.by_bin(), len(cut.bases), f"reading {cut.name}") as bins:
                    for _, found in bins:
                        for key, state in found.items():
                            write(json_text(cut.name, key, {"operator": cut.name, "key": key, "state": shown(state)}))
                        keys += len(found)
    if path is not None:
        say(f"wrote {quantity(keys, 'key')} of checkpoint {commit.checkpoint} to {path}")


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[Callable[[str], None]]:
    """Give a function that writes a line. A new file that cannot be completed is removed.

    Raises UsageError if the file exists, MegaflowError if it cannot be written, and BrokenPipeError.
    """
    if path is None:
        check_output()
    file = sys.stdout
    failing = naming(MegaflowError, f"Cannot write to {'standard output' if path is None else f'--output {path}'}")
    with failing:
        try:
            file = file if path is None else open(path, "x", encoding="utf-8")  # noqa: SIM115
        except FileExistsError as error:
            raise UsageError(f"--output {path}: the file already exists. Name a new one.") from error

    def write(line: str) -> None:
        with failing:
            print(line, file=file)

    try:
        yield write
        with failing:
            (file.flush if path is None else file.close)()
    except BaseException:
        if path is not None:
            with contextlib.suppress(OSError):  # it is gone already
                os.unlink(path)
            with contextlib.suppress(OSError):  # what is still to be written has no room either
                file.close()
        raise


@click.command("copy", cls=Command)
@DIRECTORY
@click.argument("new", metavar="NEW", type=click.Path())
@CHECKPOINT
@AS_JSON
def copy_a_store(directory: str, new: str, checkpoint: str | None, as_json: bool) -> None:
    """Copy a store to a new folder, as a backup.

    \b
      megaflow state copy kept backup/monday

    A job may be using DIR, and a job can resume from NEW. With --checkpoint, the copy has only that checkpoint. Copy
    the job's output files afterward: they then hold at least the output that the checkpoint records.
    """
    with looking_at(directory) as folder:
        commits = open_to_copy(folder, checkpoint)
        segments = segments_of(commits)
        with ticked(len(segments), "copying segments") as copied:
            copy_store(folder, commits, new, copied)
    size = sum(segment.length for segment in segments)
    newest = commits[-1]
    record = {"store": new, "checkpoint": newest.checkpoint, "segments": len(segments), "bytes": size}
    what = f"copied checkpoint {newest.checkpoint}, epoch {newest.time}, to {new}"
    parts = f"{quantity(len(segments), 'segment')}, {bytes_text(size)}"
    answer(json.dumps(record) if as_json else f"{what}: {parts}")


def states_of(folder: LocalFolder, commit: Commit, cut: OperatorCut, operators: AppOperators | None) -> OperatorStates:
    """Return an operator's states, placed as its program says, if that is given. Raises StoreError."""
    count = len(cut.bases)
    bin_of_key = BinStore(count).bin_of_key if operators is None else operators.bin_of_key(cut.name, count)
    try:
        return OperatorStates(folder, commit, cut, bin_of_key, may_be_unreadable=operators is None)
    except (StoreError, UsageError) as error:
        if operators is None and not isinstance(error, StoreDamaged):
            raise StoreError(f"{str(error).rstrip('.')}. Name the program with --app FILE.") from error
        raise


def state_text(state: Any) -> str:
    """Return a state for a terminal."""
    if isinstance(state, Unreadable):
        return f"{' or '.join(state.types)}, {bytes_text(state.bytes)}: name its program with --app FILE to show it"
    return state if isinstance(state, str) else repr(state)


COMMANDS = (get_state, export_states, copy_a_store)

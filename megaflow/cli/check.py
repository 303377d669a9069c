"""`megaflow check`: builds a program without running it, draws it as text, and warns.

The program is built as each worker of a job builds it, so all errors of a job's start appear here too: exit code 1. The
warnings are of `findings`. They change the exit code only with --strict.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from megaflow.cli.options import ArgsCommand, LinesOption, answer, complete_files, grouped, option, repeated, say
from megaflow.cli.run_options import check_flags, renamings


@click.command(cls=ArgsCommand)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]", shell_complete=complete_files)
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@grouped(
    "Job",
    repeated("--lines", cls=LinesOption, metavar="[NAME=]SPEC", help="Check the names of these inputs, as run does."),
    repeated("--rows", "rows", metavar="NAME=SPEC", help="Check the names of these inputs of rows."),
    repeated("--output", "outputs", cls=LinesOption, metavar="[NAME=]SPEC", help="Check the names of these outputs."),
    option("--state", metavar="DIR", type=click.Path(file_okay=False),
           help="Also check that the job can resume from DIR."),
)  # fmt: skip
@grouped(
    "State",
    repeated("--rename-state", "renamed", metavar="OLD=NEW",
             help="Give the saved state of operator OLD to operator NEW."),
    repeated("--drop-state", "dropped", metavar="NAME", help="Discard the saved state of operator NAME."),
)  # fmt: skip
@grouped(
    "Report",
    option("--strict", is_flag=True, help="Exit with code 1 if there is a warning."),
    option("--json", "as_json", is_flag=True, help="Print JSON."),
    option("--debug", is_flag=True, help="Keep megaflow's own frames in tracebacks."),
)
def check(
    app: str, args: tuple[str, ...], lines: tuple[str, ...], rows: tuple[str, ...], outputs: tuple[str, ...],
    state: str | None, renamed: tuple[str, ...], dropped: tuple[str, ...], strict: bool, as_json: bool, debug: bool,
) -> None:  # fmt: skip
    """Build a program without running it, draw it, and warn of faults.

    \b
      megaflow check wordcount.py
      megaflow check shop.orders:dataflow --lines orders.csv --state kept -- --currency EUR
      megaflow check wordcount.py --strict --json

    The program is built as each worker builds it, and no record is read. A warning names the line, the operator, the
    reason and the remedy: for an operator that keeps state without a name, a large or unsendable variable, a stream
    that leads nowhere, an import that another machine does not find, and what a job with --state refuses.

    \b
    Exit codes:
      0    The program can be built. There may be warnings.
      1    The program fails, a job would refuse it, or --strict and a warning.
      2    The command line is wrong.
    """
    from megaflow.cli.built_program import build_program
    from megaflow.cli.built_text import drawn, record_of
    from megaflow.cli.findings import findings
    from megaflow.cli.json_records import to_json
    from megaflow.control.wording import quantity
    from megaflow.job.launcher.inputs.launcher_input import parse_line_specs
    from megaflow.job.launcher.outputs.output_specs import parse_outputs
    from megaflow.job.worker.process.named_inputs import NamedInputs
    from megaflow.job.worker.writing.output import NamedOutputs
    from megaflow.spark import launching as spark

    check_flags()
    line_names = names_of(parse_line_specs(lines)) if lines else None
    row_names = tuple(spark.parse_row_specs(rows)) if rows else None
    output_names = tuple(filter(None, parse_outputs(outputs))) if outputs else None
    given = lines or rows
    inputs = NamedInputs(row_names or () if given else None, line_names or () if given else None, () if given else None)
    with contextlib.redirect_stdout(sys.stderr):  # what the program itself prints
        built = build_program(app, args, inputs, NamedOutputs(output_names), bool(lines) and not line_names, debug)
        found = findings(built)
    if state is not None:
        terms = {"renamed": renamings(renamed), "dropped": dropped}
        check_store(built.app, args, state, (row_names or (), line_names or (), output_names), bool(given), terms)
    if as_json:
        answer(to_json({**record_of(built), "warnings": found}))
    else:
        answer(drawn(built, found))
    if found and strict:
        say(f"{quantity(len(found), 'warning')}, and --strict is given.", "ERROR")
        click.get_current_context().exit(1)


def names_of(specs: str | dict[str, str]) -> tuple[str, ...]:
    """Return the names of inputs of lines; none if the only one has no name."""
    return tuple(specs) if isinstance(specs, dict) else ()


def check_store(
    app: Any, args: Sequence[str], state: str, names: tuple[Sequence[str], Sequence[str], Any], has_lines: bool,
    terms: dict[str, Any],
) -> None:  # fmt: skip
    """Raise StoreError if a job with these names of rows, lines and outputs could not resume from a folder."""
    from megaflow.control.messages import InputNames
    from megaflow.durable.incarnation import DurablePart, read_commits
    from megaflow.durable.local_folder import open_to_look
    from megaflow.durable.store import Store
    from megaflow.job.files.followed_files import ONLY_FOLLOWED
    from megaflow.job.launcher.store.resumption import rehearse_in_a_process
    from megaflow.job.spec import JobSpec, Rehearsal

    folder = os.path.abspath(state)
    if not os.path.isdir(folder) or not os.listdir(folder):
        return  # a new store
    with contextlib.closing(Store(open_to_look(folder))) as store:
        commits = read_commits(store)
    if not commits or commits[0].checkpoint == 0:
        return
    rows, lines, outputs = names
    part = DurablePart(folder, 0, commits[0].number, **terms)
    read = {each.input for each in (*commits[0].partitions, *commits[0].finished)}
    followed = tuple((name, "", "") for name in sorted(read.intersection((ONLY_FOLLOWED, *lines))))
    spec = JobSpec(app, args=tuple(args), state=folder, **terms)
    inputs = InputNames(tuple(rows), tuple(lines), followed=followed)
    rehearse_in_a_process(Rehearsal(spec, part, has_lines and not (rows or lines), inputs, outputs))


COMMANDS = [check]

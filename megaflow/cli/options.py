"""Things that all commands share: kinds of options, messages and progress bars."""

import contextlib
import functools
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import click

from megaflow.cli.help import Command, GroupedOption, variable_of
from megaflow.errors import MegaflowError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Where: TypeAlias = tuple[str | None, str | None, float]  # --job, --connect and --timeout: what `conversation` takes


class SingleOption(GroupedOption):
    """An option that may come once; of two click would take the last without a word. A flag may come again."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Make the parser collect all given values."""
        self.multiple = not self.is_flag
        super().add_to_parser(parser, ctx)
        self.multiple = False

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the one value. Raises UsageError if there is another."""
        name, values = str(self.name), opts.get(str(self.name))
        if isinstance(values, list):
            if len(values) > 1:
                given = (f"{self.opts[0]} {each}" if isinstance(each, str) else self.opts[0] for each in values[:2])
                raise UsageError(f"{self.opts[0]} is given twice: {' and '.join(given)}. Give it once.")
            opts = {**opts, name: values[0]}
        return super().handle_parse_result(ctx, opts, args)


class LinesOption(GroupedOption):
    """`--lines`, which may come several times with names; its variable has one SPEC, or NAME=SPEC with blanks between.

    A path may have blanks: only what looks like the next NAME= ends one.
    """

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the values that the variable has."""
        text = self.resolve_envvar_value(ctx)
        if text is None:
            return None
        return tuple(re.split(r"\s+(?=[^\W\d]\w*=)", text)) if re.match(r"[^\W\d]\w*=", text) else (text,)


def option(*names: str, env: str, cls: type[GroupedOption] = SingleOption, **more: Any) -> Callable[[F], F]:
    """Declare an option together with its environment variable. The help shows one that its name does not give."""
    variable = f"MEGAFLOW_{env}"
    return click.option(*names, cls=cls, envvar=variable, show_envvar=variable != variable_of(names[0]), **more)


def repeated(*names: str, env: str, cls: type[GroupedOption] = GroupedOption, **more: Any) -> Callable[[F], F]:
    """Declare an option that may come several times; its environment variable has the values with blanks between."""
    return option(*names, env=env, cls=cls, multiple=True, **more)


def grouped(title: str, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Declare options, in this order, as one group of the command's help."""

    def add(command: F) -> F:
        for each in reversed(options):
            command = each(command)
            command.__click_params__[-1].group = title  # type: ignore[attr-defined]
        return command

    return add


class ArgsCommand(Command):
    """A command whose ARGS, which are for the program, come after `--` and nowhere else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; raise UsageError for ARGS before the `--`, such as those that a shell makes of a glob."""
        dashes = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:dashes])
        if stray := ctx.params["args"]:
            words = ", ".join(map(repr, stray[:2])) + (f" and {len(stray) - 2} more" if len(stray) > 2 else "")
            hint = "If the shell expanded a glob, quote the glob: --lines 'FOLDER/*.txt'. "
            app = ctx.params["app"]
            is_glob = any(map(os.path.isfile, stray)) or (os.path.isfile(app) and not app.endswith(".py"))
            hint = hint if is_glob else ""
            raise UsageError(f"Unexpected arguments: {words}. {hint}The program's own arguments go after --.")
        ctx.params["args"] = tuple(args[dashes + 1 :])
        return rest


def steering(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every control command has; the command gets `where` and `as_json`."""

    @grouped(
        "Job",
        option("--job", env="JOB", metavar="NAME", help="Name of the job; needed only if several are running."),
        option("--connect", env="CONNECT", metavar="HOST:PORT",
               help="Address of one of its processes; needs MEGAFLOW_SECRET."),
        option("--timeout", env="TIMEOUT", metavar="SECONDS", type=float, default=60.0, show_default=True,
               help="Stop waiting for the command after this long."),
        option("--json", "as_json", env="JSON", is_flag=True, help="Print JSON."),
    )  # fmt: skip
    @functools.wraps(command)
    def steered(job: str | None, connect: str | None, timeout: float, **more: Any) -> None:
        command(where=(job, connect, timeout), **more)

    return steered


def say(text: str, wait_seconds: float | None = None) -> None:
    """Print a message that is not a result. A job goes on if its terminal is closed.

    Blocks while standard error is full, but no longer than `wait_seconds`; after that it drops the message.
    """
    with contextlib.suppress(OSError):
        if wait_seconds is not None and not select.select([], [sys.stderr], [], wait_seconds)[1]:
            return
        print(f"megaflow: {text}\n", end="", file=sys.stderr, flush=True)  # in one call: other threads also print


def tell_silence(silence: Any) -> None:
    """Print why a command waits, if `silence`, a `megaflow.job.side_door.Silence`, has the reason."""
    waits = "The request has been sent and waits there." if silence.sent else "The request is sent when it answers."
    if silence.is_busy:
        remedy = "To end the job at once, run megaflow control stop --force."
        say(f"The coordinator of job {silence.job!r} is busy: {silence}. {waits} {remedy}")
    elif silence.busy or silence.unasked:
        say(f"Job {silence.job!r} has not answered yet: {silence}. {waits}")


def answer(text: str) -> None:
    """Print a result. Raises BrokenPipeError if its reader has closed it, MegaflowError if it cannot be written."""
    if sys.stdout is None:
        raise MegaflowError("Cannot print the answer: standard output is closed.")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MegaflowError(f"Cannot write the answer to standard output: {error.strerror}.") from error


def give_up_output() -> None:
    """Discard output that cannot be written. Otherwise the end of the process would try again and print an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_standard_files() -> None:
    """Replace closed standard files, so that no socket gets their numbers; the replacements fail like them."""
    for file, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(file)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest number that is free
    if sys.stderr is None:  # `print` would take standard output in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[Any], None] | None]:
    """Give a function that shows the `Progress` of a long command; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, item_show_func=lambda what: what or "") as bar:

        def show(progress: Any) -> None:
            bar.length = progress.steps
            bar.update(progress.done - bar.pos, progress.what)

        yield show


@contextlib.contextmanager
def counted(things: Iterable[T], length: int, label: str) -> Iterator[Iterable[T]]:
    """Give the same things; on a terminal, show how many have come."""
    if not sys.stderr.isatty():
        yield things
        return
    with click.progressbar(things, length=length, label=label, file=sys.stderr) as shown:
        yield shown

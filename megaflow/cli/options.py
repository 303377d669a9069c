"""Things that all commands share: kinds of options, messages and progress bars."""

import contextlib
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import click

from megaflow.cli.help import RUNTIME_DIR, Command, GroupedOption, variable_of
from megaflow.errors import MegaflowError, UsageError, naming

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
LOG_FORMAT = "megaflow.log_format"  # the key in click's `meta`
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
            if len(values) > 1 and not ctx.resilient_parsing:  # a shell completes the words so far
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


def complete_files(context: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Have the shell complete names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_jobs(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of this machine's jobs that begin so."""
    from megaflow.job.job_file import present

    if (folder := context.meta.get(RUNTIME_DIR)) is not None:
        os.environ[RUNTIME_DIR] = folder  # this process only completes
    with contextlib.suppress(MegaflowError):
        return sorted({job.name for job, _ in present() if job.name.startswith(incomplete)})
    return []


def option(*names: str, env: str = "", cls: type[GroupedOption] = SingleOption, **more: Any) -> Callable[[F], F]:
    """Declare an option together with its environment variable; `env` is its name if that is not the option's own.

    The help shows such a variable, and the default.
    """
    variable = f"MEGAFLOW_{env}" if env else variable_of(names[0])
    shown = {"show_envvar": bool(env), "show_default": "default" in more}
    if "type" not in more and not more.get("is_flag"):
        more.setdefault("shell_complete", complete_files)
    return click.option(*names, cls=cls, envvar=variable, **shown, **more)


def repeated(*names: str, cls: type[GroupedOption] = GroupedOption, **more: Any) -> Callable[[F], F]:
    """Declare an option that may come several times; its environment variable has the values with blanks between."""
    return option(*names, cls=cls, multiple=True, **more)


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
        if (stray := ctx.params["args"]) and not ctx.resilient_parsing:
            words = ", ".join(map(repr, stray[:2])) + (f" and {len(stray) - 2} more" if len(stray) > 2 else "")
            hint = "If the shell expanded a glob, quote the glob: --lines 'FOLDER/*.txt'. "
            app = ctx.params["app"]
            is_glob = any(map(os.path.isfile, stray)) or (os.path.isfile(app) and not app.endswith(".py"))
            hint = hint if is_glob else ""
            raise UsageError(f"Unexpected arguments: {words}. {hint}The program's own arguments go after --.")
        ctx.params["args"] = tuple(args[dashes + 1 :])
        return rest


def use_runtime_dir(context: click.Context, param: click.Parameter, folder: str | None) -> None:
    """Set the folder for the files of running jobs, for this command and the processes that it starts."""
    if folder is not None:
        context.meta[RUNTIME_DIR] = os.path.abspath(folder)


runtime_dir = option(
    "--runtime-dir", metavar="DIR", expose_value=False, callback=use_runtime_dir,
    type=click.Path(file_okay=False), help="Keep the files that name running jobs in DIR.",
)  # fmt: skip


def watching(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a job; the command gets `where`."""

    @grouped(
        "Job",
        option("--job", metavar="NAME", shell_complete=complete_jobs,
               help="Name of the job; needed only if several are running."),
        option("--connect", metavar="HOST:PORT", help="Address of one of its processes; needs MEGAFLOW_SECRET."),
        runtime_dir,
        option("--timeout", metavar="SECONDS", type=float, default=60.0,
               help="Stop waiting for the command after this long."),
    )  # fmt: skip
    @functools.wraps(command)
    def steered(job: str | None, connect: str | None, timeout: float, **more: Any) -> None:
        from megaflow.job.contact import checked_timeout

        command(where=(job, connect, checked_timeout(timeout)), **more)

    return steered


def steering(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every control command has; the command gets `where` and `as_json`."""
    return watching(grouped("Job", option("--json", "as_json", is_flag=True, help="Print JSON."))(command))


def use_log_format(context: click.Context, param: click.Parameter, form: str) -> str:
    """Note the form in which this command prints its messages."""
    context.meta[LOG_FORMAT] = form
    return form


def say(text: str, level: str = "INFO") -> None:
    """Print a message that is not a result. A job goes on if its terminal is closed."""
    if is_json():
        say_json(text, level)
    else:
        say_text(text)


def say_text(text: str) -> None:
    """Print a message as text."""
    with contextlib.suppress(OSError):
        print(f"megaflow: {text}\n", end="", file=sys.stderr, flush=True)  # in one call: other threads also print


def is_json() -> bool:
    """Return whether this command prints its messages as JSON: see `--log-format`."""
    context = click.get_current_context(silent=True)
    given = os.environ.get(variable_of("--log-format"))
    return (given if context is None else context.meta.get(LOG_FORMAT, given)) == "json"


def say_json(text: str, level: str, exception: str = "") -> None:
    """Print a message as a JSON object."""
    import logging

    from megaflow.job.log_records import line_of, places

    line = line_of(text, places.here, getattr(logging, level), "megaflow", exception)
    with contextlib.suppress(OSError):
        write = getattr(sys.stderr, "write_rendered", sys.stderr.write)  # of a process that joins by hand
        write(f"{line}\n")
        sys.stderr.flush()


def reporter(level: str | None, form: str) -> Callable[[str], None]:
    """Set up the logging of this process; return the function that prints the messages of a job, from any thread."""
    import logging

    from megaflow.control.wording import Notice
    from megaflow.job.log_records import set_up, settle

    set_up(level, form)
    settle(level, form, is_loaded=True)
    least = logging.INFO if level is None else getattr(logging, level.upper())

    def report(text: str) -> None:
        name = "INFO" if isinstance(text, Notice) else "WARNING"
        if getattr(logging, name) < least:
            return
        if form == "json":
            say_json(text, name)
        else:
            say_text(text)

    return report


def tell_silence(silence: Any) -> None:
    """Print why a command waits, if `silence`, a `megaflow.job.admin_socket.Silence`, has the reason."""
    waits = "The request has been sent and waits there." if silence.sent else "The request is sent when it answers."
    if silence.is_busy:
        remedy = "To end the job at once, run megaflow control stop --force."
        say(f"The coordinator of job {silence.job!r} is busy: {silence}. {waits} {remedy}")
    elif silence.busy or silence.unasked:
        say(f"Job {silence.job!r} has not answered yet: {silence}. {waits}")


def answer(text: str) -> None:
    """Print a result. Raises BrokenPipeError if its reader has closed it, MegaflowError if it cannot be written."""
    check_output()
    with naming(MegaflowError, "Cannot write the answer to standard output"):
        print(text, flush=True)


def check_output() -> None:
    """Raise MegaflowError if standard output is closed."""
    if sys.stdout is None:
        raise MegaflowError("Cannot print the answer: standard output is closed.")


def give_up_output() -> None:
    """Discard output that cannot be written. Otherwise the end of the process would try again and print an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_standard_files() -> None:
    """Replace closed standard files, so that no socket gets their numbers; the replacements fail like them.

    Answers are UTF-8 in every locale, as records are: what reads them cannot know the locale.
    """
    for file, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(file)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest number that is free
    if sys.stderr is None:  # `print` would take standard output in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


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
def ticked(length: int, label: str) -> Iterator[Callable[[object], None]]:
    """Give a function to call with each thing that is done; on a terminal, show how many are."""
    with counted(range(length), length, label) as shown:
        steps = iter(shown)

        def tick(thing: object) -> None:
            next(steps, None)

        yield tick


@contextlib.contextmanager
def counted(things: Iterable[T], length: int, label: str) -> Iterator[Iterable[T]]:
    """Give the same things; on a terminal, show how many have come."""
    if not sys.stderr.isatty():
        yield things
        return
    with click.progressbar(things, length=length, label=label, file=sys.stderr) as shown:
        yield shown

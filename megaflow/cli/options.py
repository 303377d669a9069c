"""What the commands of the command line share: their options, what they tell the user, and progress bars."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Where: TypeAlias = tuple[str | None, str | None, float]  # --job, --connect and --timeout: what `conversation` takes


def option(*names: str, env: str, **more: Any) -> Callable[[F], F]:
    """Declare an option together with its environment variable, which --help shows."""
    return click.option(*names, envvar=f"MEGAFLOW_{env}", show_envvar=True, **more)


def steering(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every control command has; the command gets `where` and `as_json`."""

    @option("--job", env="JOB", metavar="NAME", help="The job's name; not needed if only one job is running.")
    @option("--connect", env="CONNECT", metavar="HOST:PORT",
            help="Where one of the job's processes listens; its secret is taken from MEGAFLOW_SECRET.")  # fmt: skip
    @option("--timeout", env="TIMEOUT", metavar="SECONDS", type=float, default=60.0, show_default=True,
            help="How long to wait for an answer, and for the command to take effect.")  # fmt: skip
    @option("--json", "as_json", env="JSON", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def steered(job: str | None, connect: str | None, timeout: float, **more: Any) -> None:
        command(where=(job, connect, timeout), **more)

    return steered


def say(text: str) -> None:
    """Tell the user something that is no result."""
    print(f"megaflow: {text}", file=sys.stderr, flush=True)


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

"""What the commands of the command line share: their options, and bars that show how far one has come."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from megaflow.control.messages import Progress

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def option(*names: str, env: str, **more: Any) -> Callable[[F], F]:
    """Declare an option together with its environment variable, which --help shows."""
    return click.option(*names, envvar=f"MEGAFLOW_{env}", show_envvar=True, **more)


def steering(command: F) -> F:
    """Add the options that every control command has."""
    for decorate in reversed((
        option("--job", env="JOB", metavar="NAME", help="The job; not needed if only one is running."),
        option("--connect", env="CONNECT", metavar="HOST:PORT",
               help="Where a process of it listens; the secret is taken from MEGAFLOW_SECRET."),
        option("--timeout", env="TIMEOUT", metavar="SECONDS", type=float, default=60.0, show_default=True,
               help="How long to wait until a command has taken effect."),
        option("--json", "as_json", env="JSON", is_flag=True, help="Print JSON."),
    )):  # fmt: skip
        command = decorate(command)
    return command


def profiling(command: F) -> F:
    """Add the options of a profile."""
    for decorate in reversed((
        option("--profile", env="PROFILE", metavar="[DIR]", is_flag=False, flag_value="profile",
               type=click.Path(file_okay=False),
               help="Write to DIR/operators.txt where each worker's time went, by operator; if not given: profile."),
        option("--profile-calls", env="PROFILE_CALLS", is_flag=True,
               help="With --profile: also in which functions, to DIR/calls.txt, DIR/worker-N.pstats. It is cProfile, "
               "which slows down each call of a function: operators with many small calls look heavier than they are."),
    )):  # fmt: skip
        command = decorate(command)
    return command


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[Progress], None] | None]:
    """Give what shows how far a long command has come, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, item_show_func=lambda what: what or "") as bar:

        def show(news: Progress) -> None:
            bar.length = news.steps
            bar.update(news.done - bar.pos, news.what)

        yield show


@contextlib.contextmanager
def counted(things: Iterable[T], length: int, label: str) -> Iterator[Iterable[T]]:
    """Give the same things, and show how many have come, on a terminal."""
    if not sys.stderr.isatty():
        yield things
        return
    with click.progressbar(things, length=length, label=label, file=sys.stderr) as shown:
        yield shown

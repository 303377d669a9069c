"""Options as all commands declare them: each has an environment variable, and those that steer a job share some."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, env: str, **more: Any) -> Callable[[F], F]:
    """Declare an option together with its environment variable, which --help shows."""
    return click.option(*names, envvar=f"MEGAFLOW_{env}", show_envvar=True, **more)


def steering(command: F) -> F:
    """Add the options that every control command has."""
    for decorate in reversed((
        option("--job", env="JOB", metavar="NAME", help="The job; not needed if only one is running."),
        option("--connect", env="CONNECT", metavar="HOST:PORT",
               help="Where its coordinator listens; the secret is taken from MEGAFLOW_SECRET."),
        option("--timeout", env="TIMEOUT", metavar="SECONDS", type=float, default=60.0, show_default=True,
               help="How long to wait until a command has taken effect."),
        option("--json", "as_json", env="JSON", is_flag=True, help="Print JSON."),
    )):  # fmt: skip
        command = decorate(command)
    return command

"""Which flags of `megaflow run` go with each other: those of a job, of one that keeps its state, of one on Spark, and
those of a process that joins. Only what was typed is refused, not what the environment says.
"""

import os

import click
from click.core import ParameterSource

from megaflow.errors import UsageError

ONLY_WITH_JOIN = ("server", "no_bootstrap", "allow_other_code")
ONLY_WITH_ON = {"conf": "--conf", "start_timeout_seconds": "--start-timeout", "shipped": "--ship"}
NOT_WITH_JOIN = {  # the job has them
    name: f"--{name.replace('_', '-')}"
    for name in ("lines", "follow", "rows",  "processes", "workers", "rate", "name", "encoding_errors", "overwrite",
                 "append", "oversubscribe", "drain_timeout", "idle_timeout", "state", "checkpoint_every",
                 "checkpoints_kept", "restarts", "shrink", "take_over", "allow_loss", "from_checkpoint",
                 "close_windows", "on")
} | ONLY_WITH_ON | {
    "outputs": "--output", "join_timeout_seconds": "--join-timeout", "renamed": "--rename-state",
    "dropped": "--drop-state",
}  # fmt: skip

KEPT = (  # by --state
    "checkpoint_every", "checkpoints_kept", "restarts", "shrink", "take_over", "allow_loss", "from_checkpoint",
    "close_windows", "renamed", "dropped",
)  # fmt: skip


def origin_of(text: str) -> tuple[str, str]:
    """Return folder and checkpoint that --from-checkpoint names. Raises UsageError if it does not name both."""
    folder, _, name = text.rpartition(":")
    if not folder or not name:
        raise UsageError(f"--from-checkpoint {text}: must be DIR:NAME, the --state folder of a job and its checkpoint.")
    return os.path.abspath(folder), name


def check_flags() -> None:
    """Raise UsageError if a flag was typed that is for processes that join, or for a job that keeps its state."""
    context = click.get_current_context()
    for name in KEPT if context.params["state"] is None else ():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = NOT_WITH_JOIN[name]
            raise UsageError(f"{flag} is only for jobs that save their state. Add --state DIR.")
    for name, flag in ONLY_WITH_ON.items() if context.params["on"] is None else ():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{flag} is only for processes on Spark. Add --on spark.")
    if context.params["on"] is not None and context.get_parameter_source("listen") is ParameterSource.COMMANDLINE:
        raise UsageError("--listen does not go with --on: processes on Spark find their own addresses. Leave it out.")
    for name in ONLY_WITH_JOIN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag, value = f"--{name.replace('_', '-')}", context.params[name]
            flag = flag if value is True else f"{flag} {value}"
            raise UsageError(f"{flag} is only for a process that joins a running job. Add --join, or leave it out.")


def check_join_flags(target: str) -> None:
    """Raise UsageError if a flag was typed that a job has, and so not a process that joins it."""
    context = click.get_current_context()
    for name, flag in NOT_WITH_JOIN.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{flag} does not go with --join {target}: the running job sets it. Leave it out.")

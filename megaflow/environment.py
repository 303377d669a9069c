"""The environment variables that megaflow reads, and a warning for those with its prefix that it does not know.

`docs/environment.md` describes each variable. Tests compare this list with that page, with the options of the command
line and with the code.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Final

from megaflow.errors import similar

PREFIX: Final = "MEGAFLOW_"
OF_OPTIONS: Final = """
    ACCEPT_ROWS ALLOW_LOSS ALLOW_OTHER_CODE APP APPEND BALANCE BALANCE_BY BATCH BINS CHECKPOINT CHECKPOINTS_KEPT
    CHECKPOINT_EVERY CHECKPOINT_NAME CLOSE_WINDOWS CONF CONNECT COOL_DOWN DEBUG DRAIN DRAIN_TIMEOUT DROP_STATE DRY_RUN
    ENCODING_ERRORS EVERY EXPORT_OUTPUT FOLLOW FORCE FORGET_MISSING FROM_CHECKPOINT GAP GRAPH_FORMAT ID IDLE_TIMEOUT JOB
    JOIN JOIN_TIMEOUT JSON LINES LINE_SIZE_MAX LISTEN LOG_FORMAT LOG_LEVEL MAP MAX_PROCESSES MAX_SKEW METRICS
    MIN_PROCESSES NAME NO_BOOTSTRAP NO_DRAIN ON OUTBOX_BACKUP OUTBOX_DROP OUTBOX_REWRITE OUTPUT OVER OVERSUBSCRIBE
    OVERWRITE PARTIAL_WINDOWS PROCESSES PROFILE PROFILE_CALLS QUEUED RATE RELOCATE RENAME_STATE RESTARTS ROWS
    RUNTIME_DIR SAME_FILE SERVER SHIP SHOW_BINS SHRINK START_TIMEOUT STATE STRATEGY STRICT TAKE_OVER TARGET_RATE
    TARGET_UTILIZATION TEMPLATE TIMEOUT TO WATCH WATCH_GAUGES WEB WEB_CONTROL WORKER WORKERS
"""  # they set options of the command line; of these, Python's functions read only RUNTIME_DIR
OTHERS: Final = "CHECK FUSION GC_THRESHOLD PYTHON SECRET SEED SPARK_TRANSFER WEB_TOKEN"
KNOWN: Final = frozenset(PREFIX + name for name in (OF_OPTIONS + OTHERS).split())


class UnknownVariable(UserWarning):
    """An environment variable has megaflow's prefix, but megaflow does not know it."""


def complaints(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence or two for each name that megaflow does not know, with the nearest name that it does know.

    >>> print(*complaints(["HOME", "MEGAFLOW_STATE", "MEGAFLOW_LINS"]))
    The environment variable MEGAFLOW_LINS has no effect. Did you mean MEGAFLOW_LINES?
    >>> print(*complaints(["MEGAFLOW_XYZ"]))
    The environment variable MEGAFLOW_XYZ has no effect. docs/environment.md lists the variables that have.
    """
    for name in sorted(name for name in names if name.startswith(PREFIX) and name not in KNOWN):
        near = similar(name.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in KNOWN))
        hint = f"Did you mean {PREFIX}{near}?" if near else "docs/environment.md lists the variables that have."
        yield f"The environment variable {name} has no effect. {hint}"


def warn_of_unknown() -> None:
    """Warn about each unknown variable, at the line of the program that called megaflow."""
    for text in complaints(os.environ):
        level, frame = 2, sys._getframe(1)
        while frame.f_back and str(frame.f_globals.get("__name__")).startswith("megaflow."):
            level, frame = level + 1, frame.f_back
        warnings.warn(text, UnknownVariable, stacklevel=level)

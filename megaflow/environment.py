"""The environment variables that megaflow reads, and a warning for one that it does not know.

`docs/environment.md` says what each of them means. Tests compare this list with that page, with the options of the
command line and with the code.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "MEGAFLOW_"
OF_OPTIONS: Final = """
    ALLOW_LOSS ALLOW_OTHER_CODE APP APPEND BALANCE BALANCE_BY BATCH BINS CHECKPOINT CHECKPOINTS_KEPT CHECKPOINT_EVERY
    CHECKPOINT_NAME CLOSE_WINDOWS CONF CONNECT COOL_DOWN DEBUG DRAIN DRAIN_TIMEOUT DROP_STATE DRY_RUN ENCODING_ERRORS
    EVERY EXPORT_OUTPUT FOLLOW FORCE FROM_CHECKPOINT GAP GRAPH_FORMAT ID IDLE_TIMEOUT JOB JOIN JOIN_TIMEOUT JSON LINES
    LISTEN MAP MAX_PROCESSES MIN_PROCESSES NAME NO_BOOTSTRAP NO_DRAIN ON OUTBOX_BACKUP OUTBOX_DROP OUTBOX_REWRITE
    OUTPUT OVER OVERSUBSCRIBE OVERWRITE PROCESSES PROFILE PROFILE_CALLS RATE RENAME_STATE RESTARTS ROWS SERVER SHIP
    SHOW_BINS SHRINK START_TIMEOUT STATE STRATEGY TAKE_OVER TARGET_RATE TARGET_UTILIZATION TIMEOUT TO WATCH WORKER
    WORKERS
"""  # they set options of the command line; Python's functions do not read them
OTHERS: Final = "CHECK FUSION GC_THRESHOLD SECRET SEED SPARK_TRANSFER"
KNOWN: Final = frozenset(PREFIX + name for name in (OF_OPTIONS + OTHERS).split())


class UnknownVariable(UserWarning):
    """A variable in the environment begins like those of megaflow, and is none of them."""


def complaints(names: Iterable[str]) -> Iterator[str]:
    """Return a sentence or two for each name that megaflow does not know, with the nearest name that it does know.

    >>> print(*complaints(["HOME", "MEGAFLOW_STATE", "MEGAFLOW_LINS"]))
    The environment variable MEGAFLOW_LINS has no effect. Did you mean MEGAFLOW_LINES?
    >>> print(*complaints(["MEGAFLOW_XYZ"]))
    The environment variable MEGAFLOW_XYZ has no effect. docs/environment.md lists the variables that have.
    """
    for name in sorted(name for name in names if name.startswith(PREFIX) and name not in KNOWN):
        near = get_close_matches(name.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in KNOWN), n=1)
        hint = f"Did you mean {PREFIX}{near[0]}?" if near else "docs/environment.md lists the variables that have."
        yield f"The environment variable {name} has no effect. {hint}"


def warn_of_unknown() -> None:
    """Warn of each unknown variable, at the line of the program that called megaflow."""
    for text in complaints(os.environ):
        level, frame = 2, sys._getframe(1)
        while frame.f_back and str(frame.f_globals.get("__name__")).startswith("megaflow."):
            level, frame = level + 1, frame.f_back
        warnings.warn(text, UnknownVariable, stacklevel=level)

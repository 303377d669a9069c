"""Checks of Spark's settings for sessions whose executors run worker processes.

They refuse settings with which worker processes could not start or would be killed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from megaflow.errors import UsageError

EXECUTOR_MIB_MIN: Final = 450
UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
SPECULATION: Final = ("spark.speculation", "spark.speculation.task.duration.threshold")
IDLE: Final = ("spark.python.worker.killOnIdleTimeout", "spark.python.worker.idleTimeoutSeconds")
RLIMIT: Final = "spark.executor.pyspark.memory"
MEMORY: Final = "spark.executor.memory"
RESERVED: Final = ("spark.master", "spark.submit.deployMode")


def parse_conf(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the values of `--conf`, each K=V. Raises UsageError.

    >>> parse_conf(["spark.executor.memory=900m"])
    (('spark.executor.memory', '900m'),)
    """
    pairs = []
    for each in given:
        name, sign, value = each.partition("=")
        if not sign or not name.startswith("spark."):
            raise UsageError(f"--conf {each}: must be K=V, a setting of Spark, as in spark.executor.memory=2g.")
        if name in RESERVED:
            raise UsageError(
                f"--conf {each}: Name the master by --on spark:MASTER. The driver always runs in this process."
            )
        pairs.append((name, value))
    return tuple(pairs)


def parse_on(text: str) -> str:
    """Return the master of `--on spark[:MASTER]`, "" if it names none. Raises UsageError.

    >>> parse_on("spark:spark://host:7077"), parse_on("spark")
    ('spark://host:7077', '')
    """
    kind, colon, master = text.partition(":")
    if kind != "spark" or (colon and not master):
        raise UsageError(
            f"--on {text}: must be spark or spark:MASTER, as in spark:spark://host:7077 or spark:local[4]."
        )
    return master


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise UsageError for a setting with which Spark would kill healthy worker processes."""

    def is_on(name: str) -> bool:
        return settings.get(name, "false").strip().lower() == "true"

    def refuse(name: str, why: str, remedy: str) -> UsageError:
        return UsageError(f"{name}={settings[name]}: {why}; {remedy}.")

    if is_on(SPECULATION[0]) and SPECULATION[1] in settings:
        why = "Spark would start a second copy of each worker process and kill one of the two"
        raise refuse(SPECULATION[1], why, f"leave it out, or {SPECULATION[0]}")
    if is_on(IDLE[0]) and settings.get(IDLE[1], "0").strip() not in ("0", ""):
        why = "Spark would kill worker processes that run longer than this, because it sees no progress"
        raise refuse(IDLE[1], why, f"leave it out, or {IDLE[0]}")
    if RLIMIT in settings:
        why = "it limits the address space of worker processes, which would end them"
        raise refuse(RLIMIT, why, f"leave it out; worker processes use memory outside {MEMORY}")
    if MEMORY in settings and 0 < mebibytes(settings[MEMORY]) < EXECUTOR_MIB_MIN:
        why = (
            f"Spark needs at least {EXECUTOR_MIB_MIN} MiB per executor, and would restart smaller ones again and again"
        )
        raise refuse(MEMORY, why, "give more, as in 1g")


def mebibytes(text: str) -> float:
    """Return a Spark size in MiB. 0 if the text is not a size.

    >>> mebibytes("900m"), mebibytes("2g"), mebibytes("512"), mebibytes("much")
    (900.0, 2048.0, 512.0, 0)
    """
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return float(match[1]) * UNITS[match[2] or "m"] if match else 0

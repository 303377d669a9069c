"""What a worker calls under `--profile-calls`: a cProfile of each operator, and one of everything else.

Each operator has a profiler of its own, which is on while the operator runs: so functions are known by the operator
for which they ran, also those that several share. A switch costs about a microsecond, once for each time that an
operator runs. What cProfile itself costs, for each call of a Python function, is what makes times doubtful here.
"""

import cProfile
import pstats
from pathlib import Path
from typing import Any, TypeAlias

FUNCTIONS_MAX = 25  # of each operator, in the table; the pstats file has all

Key: TypeAlias = tuple[int, int] | None  # (dataflow, operator); None: everything else


class Calls:
    """One worker's. Everything is called on its thread."""

    def __init__(self) -> None:
        self._profiles: dict[Key, cProfile.Profile] = {None: cProfile.Profile()}
        self._on = self._profiles[None]
        self._stats: pstats.Stats | None = None

    def begin(self) -> None:
        """Profile what is no operator."""
        self._on.enable()

    def enter(self, key: tuple[int, int]) -> None:
        """Profile an operator, until it stops."""
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = cProfile.Profile()
        self._switch(profile)

    def leave(self) -> None:
        """Profile what is no operator again."""
        self._switch(self._profiles[None])

    def end(self) -> dict[Key, tuple[tuple[str, str, int, float, float], ...]]:
        """Stop; return for each operator its functions as `profile.Call`, most time of its own first."""
        self._on.disable()
        found = {}
        for key, profile in self._profiles.items():
            profile.create_stats()
            if not profile.stats:
                continue
            found[key] = _functions(profile.stats)
            if self._stats is None:
                self._stats = pstats.Stats(profile)
            else:
                self._stats.add(profile)
        return found

    def dump(self, path: Path) -> None:
        """Write all of it, to be opened by `python -m pstats`. Raises OSError."""
        if self._stats is not None:
            self._stats.dump_stats(path)

    def _switch(self, profile: cProfile.Profile) -> None:
        self._on.disable()
        self._on = profile
        profile.enable()


def _functions(stats: dict[Any, Any]) -> tuple[tuple[str, str, int, float, float], ...]:
    """Return the functions of a profiler's `stats`.

    >>> _functions({("a.py", 3, "f"): (1, 2, 0.5, 1.5, {}), ("~", 0, "<len>"): (1, 1, 0.7, 0.7, {})})
    (('<len>', '', 1, 0.7, 0.7), ('f', 'a.py:3', 2, 0.5, 1.5))
    """
    functions = [
        (name, f"{file}:{line}" if line else "", calls, own, total)
        for (file, line, name), (_, calls, own, total, _) in stats.items()
    ]
    return tuple(sorted(functions, key=lambda each: -each[3])[:FUNCTIONS_MAX])

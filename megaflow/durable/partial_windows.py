"""Which windows of a job that resumes lack records, because states of windows were given up.

A window that was open at the checkpoint had records whose states are gone: by `--drop-state`, or by an `upgrade` that
returned None for the key. Records after the checkpoint make a window anew, and its result is of a part of its records.

1. Let g be the greatest timestamp of all records before the checkpoint. A window that begins after g had none of them.
   So all others are partial, whichever keys and bounds the windows have now. (Sessions: see `WindowFold`.)
2. If states of windows are dropped, all operators with windows that begin without states are partial up to g. A commit
   keeps g for each of them, through all restarts. If `upgrade` forgets a key, g stays in the state of that key.
"""

from collections.abc import Collection, Iterable
from typing import Final

from megaflow.durable.commits import Commit
from megaflow.durable.restored import WINDOWS
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PartialWindows:
    """Up to which timestamps windows may lack records, in microseconds.

    >>> partial = PartialWindows((("kept", None), ("since", 7)), 9)
    >>> partial.of("kept"), partial.of("since"), partial.of("new")
    (None, 7, 9)
    """

    known: tuple[tuple[str, int | None], ...] = ()  # operator with states in the commit -> its limit; None: it has none
    fresh: int | None = None  # the limit of all others
    are_emitted: bool = False  # whether their results are put out like all others

    def of(self, operator: str) -> int | None:
        """Return the limit of an operator; None if its windows lack nothing."""
        return dict(self.known).get(operator, self.fresh)


NONE_PARTIAL: Final = PartialWindows()
CHOICES: Final = ("leave-out", "emit")
"""What a user may wish for the results of partial windows."""


def partial_windows(
    commit: Commit, renamed: Iterable[tuple[str, str]], dropped: Collection[str], are_emitted: bool
) -> PartialWindows:
    """Return the limits of a job that resumes from a commit and gives up the states of the dropped operators."""
    names = dict(renamed)
    known = tuple((names.get(cut.name, cut.name), cut.partial) for cut in commit.operators if cut.name not in dropped)
    has_dropped = any(cut.name in dropped and cut.form.startswith(WINDOWS) for cut in commit.operators)
    return PartialWindows(known, furthest_of(commit) if has_dropped else None, are_emitted)


def furthest_of(commit: Commit) -> int | None:
    """Return the greatest timestamp before a commit; None if there was none.

    Commits of earlier versions have only the greatest bound, which is less by `out_of_order`.
    """
    return commit.bound if commit.furthest is None else commit.furthest

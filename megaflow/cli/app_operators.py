"""The stateful operators of a program, which know the bin of each key. The program is built for that, but not run.

Building loads the program and the classes of its states. Each operator asks for the states that it begins with: it
gets none, and is noted.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from megaflow.durable.restored import Heir, Restored
from megaflow.errors import PeerFailed, UsageError
from megaflow.job.app import find_app
from megaflow.job.worker.dry_build import Enough, build_dry, draughtsman
from megaflow.job.worker.flow import Flow, load
from megaflow.megaphone.journal import Durability
from megaflow.timely.dataflow.error_notes import format_user_traceback


class AppOperators:
    """The stateful operators of a program."""

    def __init__(self, text: str, args: Sequence[str]) -> None:
        """Load FILE[:FUNCTION] and build its dataflow. Raises UsageError, or PeerFailed with its traceback."""
        self._text = text
        self._found: dict[str, Heir] = {}  # by name
        app = find_app(text)
        worker = draughtsman(args)
        try:
            function = load(app)

            def build(flow: Flow) -> Any:
                flow.scope.ref.graph.extension(Durability).restore = self._note
                return function(flow)

            build_dry(worker, build, args)
        except (KeyboardInterrupt, UsageError):
            raise
        except Enough:
            pass
        except BaseException as error:
            raise PeerFailed(format_user_traceback(error, False)) from error

    def _note(self, heir: Heir, bins: Collection[int]) -> Restored:
        self._found[heir.name] = heir
        return Restored({}, {})

    def bin_of_key(self, operator: str, bins: int) -> Callable[[Any], int]:
        """Return a function from a key of this operator to its bin. Raises UsageError if there is no such operator."""
        if operator not in self._found:
            there = ", ".join(sorted(self._found)) or "none"
            raise UsageError(f"The program {self._text!r} has no stateful operator {operator!r}. It has: {there}.")
        return self._found[operator].binning(bins, None)

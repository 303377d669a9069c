"""Which stream of numbered commands a stateful operator listens to.

Operators that share a control stream share one numbering of it, and move together; so
they must have the same number of bins. A flow sets a default that is numbered already.
"""

from typing import Any

from megaflow.errors import BuildError
from megaflow.router import number_commands
from megaflow.routing import Numbered
from megaflow.timely.dataflow.graph import Port, ScopeRef

_DEFAULT = "default control"


def set_default(port: Port[Numbered]) -> None:
    """Let the stateful operators of this dataflow listen to `port`, a broadcast stream of numbered commands."""
    port.scope.graph.notes[_DEFAULT] = port


def control_for(scope: ScopeRef, control: Port[Any] | None, bins: int) -> Port[Numbered] | None:
    """The numbered commands for an operator with this many bins; None if it has no control at all.

    Raises BuildError if another operator on the same stream has another number of bins.
    """
    notes = scope.graph.notes
    if control is None:
        numbered: Port[Numbered] | None = notes.get(_DEFAULT)
        if numbered is None:
            return None
    else:
        numbered = notes.get(control)
        if numbered is None:
            numbered = notes[control] = number_commands(control, bins)
    known = notes.setdefault(("bins", numbered), bins)
    if known != bins:
        raise BuildError(
            f"bins={bins}, but another stateful operator on the same control stream has bins={known}; "
            "operators that share a control stream move together and need the same number"
        )
    return numbered

"""What the controller is told and what it tells its caller to do: two small languages of values."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from megaflow.control.messages import Accepted, Done, Refused, Request, StatusAsk
from megaflow.routing import Numbered

# Events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asked for something; the answers go to `client`."""

    client: Hashable
    request: Request


@dataclass(frozen=True, slots=True)
class Mailed:
    """A worker reported something."""

    source: int
    body: Any


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the output probe stands at `frontier`, None when it is done."""

    frontier: int | None


# Instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inject:
    """Put this on the control stream, at its present time."""

    command: Numbered


@dataclass(frozen=True, slots=True)
class Advance:
    """Advance the control stream to this time."""

    time: int


@dataclass(frozen=True, slots=True)
class CloseControl:
    """Close the control stream: nothing will follow."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a client; if it is gone, forget it."""

    client: Hashable
    message: Accepted | Done | Refused


@dataclass(frozen=True, slots=True)
class Mail:
    """Send this to a worker (perhaps this one)."""

    target: int
    body: StatusAsk


Event: TypeAlias = Asked | Mailed | Ticked
Instruction: TypeAlias = Inject | Advance | CloseControl | Reply | Mail

"""Messages between the launcher and the agents of its processes on other machines (role "agent").

    agent                                   launcher
    hello of the handshake: `AgentHello`   ──▶
                                      ◀──   Probe: which of these addresses can be reached from here
    Probed                            ──▶
                                      ◀──   Begin: the process's part   or   Dismiss: this attempt is not wanted
    Born, Printed, Signed, …, Over    ──▶   Kill: end the process at once

The app, its arguments and the secret arrive with the agent's task (`AgentTask`), over Spark's own connections. Nothing
that arrives at a port is unpickled. If the connection ends, the process ends, and the reverse.
"""

from dataclasses import fields
from typing import Any

from megaflow.control.shapes import conforms
from megaflow.errors import ProtocolError
from megaflow.job.spec import Address, ChildSpec
from megaflow.quick_dataclass import dataclass

AGENT_ROLE = "agent"


@dataclass(frozen=True, slots=True)
class AgentTask:
    """Everything that an agent gets from its task."""

    number: int  # of the process; the launcher starts each number once
    launchers: tuple[Address, ...]  # possible addresses of the launcher, the likeliest first
    secret: bytes
    draft: ChildSpec  # of the process, without its part and its slot
    environment: tuple[tuple[str, str], ...]  # added to the environment that the process finds there
    witnesses: tuple[tuple[str, bytes | int], ...] = ()  # files that must exist: their content, or their least size


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Identity and addresses of an agent."""

    number: int
    executor: str
    host: str  # of the executor, by its own name; "" if unknown
    log_url: str  # of the executor's standard error; "" if there is none
    hosts: tuple[str, ...]  # its possible addresses, the likeliest first
    port: int  # where its process will listen
    probe_port: int  # where others may test a connection


@dataclass(frozen=True, slots=True)
class Unfit:
    """No process can run there, and no other attempt would succeed. Sent instead of all other messages."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to connect to these addresses, one group for each process."""

    targets: tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """The addresses that could be connected to."""

    reached: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the process."""

    name: str  # of the job
    host: str  # the address that others get for it
    process: int | None  # number of a founder; None: the process joins
    addresses: tuple[tuple[str, int], ...]  # of all founders; for a joiner: its contact


@dataclass(frozen=True, slots=True)
class Dismiss:
    """This attempt is not wanted. End without an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process at once."""


@dataclass(frozen=True, slots=True)
class Born:
    """The process runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Printed:
    """Output of the process on its standard output or error."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """The process's last heartbeat, in a clock of its own. `now` is that clock's current time."""

    now: float
    data: bytes  # as it stands in the sign file


@dataclass(frozen=True, slots=True)
class Over:
    """The process has ended."""

    code: int
    report: bytes  # its exit report, as written; b"" if there is none


TO_AGENT = (Probe, Begin, Dismiss, Kill)
FROM_AGENT = (Unfit, Probed, Born, Printed, Signed, Over)


def check_word(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return a received message if it is of one of these kinds. Raises ProtocolError otherwise."""
    if type(value) not in kinds or not conforms(value, type(value)):
        raise ProtocolError(f"An agent or its launcher sent an unknown message: {value!r:.100}")
    return value


def read_hello(record: dict[str, Any]) -> AgentHello:
    """Return an agent's hello, read from its handshake. Raises ProtocolError."""
    named: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    if named.keys() == {field.name for field in fields(AgentHello)}:
        hello = AgentHello(**named)
        if conforms(hello, AgentHello):
            return hello
    raise ProtocolError(f"An agent's hello has unknown fields: {list(record)}")

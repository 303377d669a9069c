"""What the launcher and the agents of its processes elsewhere say to each other (role "agent").

    agent                                   launcher
    hello of the handshake: `AgentHello`   ──▶
                                      ◀──   Probe: which of these addresses can be reached from here
    Probed                            ──▶
                                      ◀──   Begin: the process's part   or   Dismiss: this attempt is not wanted
    Born, Printed, Signed, …, Over    ──▶   Kill: end the process at once

The app, its arguments and the secret have come with the agent's task (`AgentTask`), over Spark's own connections;
nothing that arrives at a port is unpickled. The end of the connection ends the process, or is its end.
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
    """All that an agent is told by its task."""

    number: int  # of the process; granted once
    launchers: tuple[Address, ...]  # where the launcher may be reached, the likeliest first
    secret: bytes
    draft: ChildSpec  # of the process, but for its part and its seat
    environment: tuple[tuple[str, str], ...]  # of the process, beside what it finds there
    witnesses: tuple[tuple[str, bytes | int], ...] = ()  # files that must be there: what one has, or the bytes at least


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Who an agent is."""

    number: int
    attempt: int  # of Spark's task, unique among all of the application
    executor: str
    host: str  # of the executor, by its own name; "" if it does not say
    log_url: str  # of the executor's standard error; "" if there is none
    hosts: tuple[str, ...]  # under which it may be reached, the likeliest first
    port: int  # where its process will listen
    probe_port: int  # where others may try whether they can connect
    pid: int  # of the agent


@dataclass(frozen=True, slots=True)
class Unfit:
    """Instead of all else: no process can run there, and no other attempt would do better."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to connect to these, of each process one after another."""

    targets: tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """Which of them could be connected to."""

    reached: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the process."""

    name: str  # of the job
    host: str  # where others are told that it listens
    process: int | None  # of a founder
    addresses: tuple[tuple[str, int], ...]  # of all founders; of one that joins: its contact


@dataclass(frozen=True, slots=True)
class Dismiss:
    """This attempt is not wanted: end well."""

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
    """What it has written to its standard output or error."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """Its last sign of life, in a clock of its own; `now` is that clock's present time."""

    now: float
    data: bytes  # as it stands in its file


@dataclass(frozen=True, slots=True)
class Over:
    """It has ended."""

    code: int
    report: bytes  # its last word, as it was written; b"" if there is none


TO_AGENT = (Probe, Begin, Dismiss, Kill)
FROM_AGENT = (Unfit, Probed, Born, Printed, Signed, Over)


def check_word(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return a message that has come, if it is one of these. Raises ProtocolError."""
    if type(value) not in kinds or not conforms(value, type(value)):
        raise ProtocolError(f"An agent or its launcher sent an unknown message: {value!r:.100}")
    return value


def read_hello(record: dict[str, Any]) -> AgentHello:
    """Return what an agent says of itself in its handshake. Raises ProtocolError."""
    named: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    if named.keys() == {field.name for field in fields(AgentHello)}:
        hello = AgentHello(**named)
        if conforms(hello, AgentHello):
            return hello
    raise ProtocolError(f"An agent's hello has unknown fields: {list(record)}")

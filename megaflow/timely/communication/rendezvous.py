"""The rendezvous: the processes of a cluster connect, at its start or when a process joins.

At the start each process dials the processes with lower numbers and waits for those with higher ones. Both sides of a
connection compare the settings that must agree, so both report a difference. A joining process dials all members. They
compare the settings and refuse the process if they differ, so a newcomer's request can never stop the members.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from megaflow.errors import ClusterError, ConfigMismatch, ConnectTimeout, ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.acceptor import Dialer
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.handshake import ClientHandshake, welcome
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link

PEER_ROLE = "peer"


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A process of the cluster: its address and its workers."""

    process: int
    host: str
    port: int
    ids: tuple[int, ...]  # of its workers

    def __str__(self) -> str:
        return f"process {self.process} at {address_text((self.host, self.port))}"

    def workers(self) -> str:
        """Return its worker ids in words.

        >>> PeerAddress(1, "10.0.0.7", 2101, (2, 3)).workers()
        'workers 2, 3'
        """
        return f"worker{'s' if len(self.ids) > 1 else ''} {', '.join(map(str, self.ids))}"


def read_newcomer(hello: dict[str, Any]) -> tuple[PeerAddress, int, int]:
    """Return the joining process, its number of workers and the change that it names; raises ProtocolError."""
    match hello:
        case {
            "process": int() as process,
            "host": str() as host,
            "port": int() as port,
            "ids": [int(), *_] as ids,
            "workers": int() as workers,
            "change": int() as change,
        } if all(isinstance(index, int) for index in ids):
            return PeerAddress(process, host, port, tuple(ids)), workers, change
    raise ProtocolError(f"a newcomer's hello of another shape: {list(hello)}")


@dataclass(eq=False)
class Rendezvous:
    """Collector of a link to every other process. Calls `connected(peer, link)` for each, or `failed(error)`.

    If `change` is given, this process joins, with that change of the membership.
    """

    peers: Sequence[PeerAddress]  # all processes
    process: int  # this one
    workers: int  # in each process
    connected: Callable[[PeerAddress, Link], None]
    failed: Callable[[ClusterError], None]
    change: int | None = None
    _dialers: dict[int, Dialer] = field(default_factory=dict)  # process -> its dialer

    def __post_init__(self) -> None:
        self.missing = {peer.process: peer for peer in self.peers if peer.process != self.process}
        own = next(peer for peer in self.peers if peer.process == self.process)
        self.hello: dict[str, Any] = {"process": self.process, "workers": self.workers, "ids": list(own.ids)}
        if self.change is None:
            self.hello |= {"processes": len(self.peers)}
        else:
            self.hello |= {"change": self.change, "host": own.host, "port": own.port}

    def dial(self, poller: Poller, secret: bytes) -> None:
        """Start to dial every process with a lower number, or all processes if this one joins."""
        handshake = partial(ClientHandshake, secret, PEER_ROLE, self.hello)
        for process, peer in list(self.missing.items()):
            if process < self.process or self.change is not None:
                answered = partial(self._answered, process)
                self._dialers[process] = Dialer(poller, (peer.host, peer.port), handshake, answered, self.failed)

    def admit(self, link: Link, hello: dict[str, Any]) -> None:
        """Accept a process that has dialed this one. Raises ConfigMismatch if it does not belong to this cluster."""
        process, mismatch = self._compare(link, hello)
        if mismatch is not None:
            if not self.missing:  # the cluster is complete, so a stray process must not stop it
                raise mismatch
            link.queue(0, [welcome(self.hello)])  # so that the other side also sees the difference
            link.flush()
            self.failed(mismatch)
            return
        if process not in self.missing or process < self.process:
            raise ConfigMismatch(
                f"process {process} is already connected: were two processes started with the same number?"
            )
        link.queue(0, [welcome(self.hello)])
        self.connected(self.missing.pop(process), link)

    def timeout(self, seconds: float) -> ConnectTimeout:
        """Return the error that names all missing processes."""
        troubles = {process: dialer.trouble for process, dialer in self._dialers.items()}
        missing = sorted(self.missing.items())
        named = [f"{peer} ({troubles.get(process, 'it has not connected')})" for process, peer in missing]
        return ConnectTimeout(
            f"process {self.process} waited {seconds:g} s for {'; '.join(named)}. Start the missing processes, or "
            "check the addresses, the firewalls and that all processes have the same MEGAFLOW_SECRET"
        )

    def _answered(self, expected: int, link: Link, answer: dict[str, Any]) -> None:
        process, mismatch = self._compare(link, answer)
        if mismatch is None and process != expected:
            remedy = "another process has taken its address"
            if self.change is None:
                remedy = "give all processes the same list of addresses"
            mismatch = ConfigMismatch(
                f"{link.address} is process {process}, but process {self.process} lists it as process {expected}: "
                f"{remedy}"
            )
        if mismatch is not None:
            link.close()
            self.failed(mismatch)
        else:
            self.connected(self.missing.pop(process), link)

    def _compare(self, link: Link, hello: dict[str, Any]) -> tuple[int, ConfigMismatch | None]:
        """Return the number of a process, and how its settings differ from those here."""
        match hello:
            case {"process": int() as process, "workers": int(), "ids": list()}:
                return process, self._mismatch(link, hello, process)
        raise ProtocolError(f"a peer's hello of another shape: {list(hello)}")

    def _mismatch(self, link: Link, hello: dict[str, Any], process: int) -> ConfigMismatch | None:
        """Compare settings; return the error for the first that differs, with both values."""
        who = f"process {process} ({link.address})"
        own = f"process {self.process}"
        if hello["workers"] != self.workers:
            return ConfigMismatch(
                f"{who} was started with {hello['workers']} workers per process, but {own} with {self.workers}: give "
                "all processes the same -w"
            )
        processes = hello.get("processes")
        if self.change is None and processes != len(self.peers):
            return ConfigMismatch(
                f"{who} was started for {processes} processes, but {own} for {len(self.peers)}: give all processes "
                "the same -n"
            )
        expected = self.missing.get(process)
        if expected is not None and hello["ids"] != list(expected.ids):
            return ConfigMismatch(f"{who} has workers {hello['ids']}, but {own} expects {list(expected.ids)}")
        return None

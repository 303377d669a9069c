"""What processes started by hand are told before they join a job: any process of it answers, on its control port."""

from typing import Any

from megaflow.control.messages import Done, Request, Terms, TermsQuery
from megaflow.errors import ProtocolError
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.role_handlers import Connection, RoleHandler


class TermsDoor:
    """Role "control": answers `TermsQuery`, and passes everything else on."""

    def __init__(self, terms: Terms, door: RoleHandler) -> None:
        self._terms = terms
        self._door = door

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Pass it on."""
        self._door.connected(connection, hello)

    def received(self, connection: Connection, value: Any) -> None:
        """Answer, or pass it on."""
        match value:
            case Request(id=int(id), body=TermsQuery()):
                connection.send(Done(id, self._terms))
            case _:
                self._door.received(connection, value)

    def lost(self, connection: Connection) -> None:
        """Pass it on."""
        self._door.lost(connection)


def ask_terms(contact: Address, secret: bytes, timeout_seconds: float) -> Terms:
    """Ask a process of a job for the job's terms. Raises what `Client.connect` and `Client.receive` do."""
    with Client.connect(*contact, secret, "control", {}, timeout_seconds) as client:
        client.send(Request(0, TermsQuery()))
        answer = client.receive(timeout_seconds)
    match answer:
        case Done(_, Terms() as terms):
            return terms
    raise ProtocolError(f"{client.address} was asked for the job's terms, and answered {answer!r:.100}")

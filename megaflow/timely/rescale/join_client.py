"""How a process asks a running cluster to let it join; its counterpart is `megaflow.timely.rescale.join_server`."""

import time
from collections.abc import Sequence

from megaflow.errors import ConfigMismatch, ConnectTimeout, JoinDenied, PeerLost, ProtocolError
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.communication.tcp_fabric import JOIN_ROLE
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import Admission, Denied

CONNECT_SECONDS = 5.0  # for one contact; then the next has its turn
ROUND_SECONDS = 0.1  # between two rounds over all contacts


def ask_to_join(
    contacts: Sequence[tuple[str, int]],
    secret: bytes,
    listens: tuple[str, int],
    workers: int,
    server: WorkerId | None,
    timeout_seconds: float,
) -> Admission:
    """Ask one process after the other until one answers, and return the coordinator's leave to join.

    `listens` is where this process can be reached, `server` the worker to be bootstrapped by (None: any). Blocks up
    to the timeout. Raises JoinDenied with the reason, ConnectTimeout naming the contacts and what is wrong with each,
    ConfigMismatch if one refuses the connection, for another secret say.
    """
    deadline = time.monotonic() + timeout_seconds
    hello = {"host": listens[0], "port": listens[1], "workers": workers, "server": server}
    troubles = dict.fromkeys(contacts, "not tried")
    while True:
        for contact in contacts:
            left = deadline - time.monotonic()
            if left <= 0:
                named = "; ".join(f"{address_text(contact)} ({trouble})" for contact, trouble in troubles.items())
                raise ConnectTimeout(
                    f"this process could not join within {timeout_seconds:g} s: {named}. Name running processes of a "
                    "cluster"
                )
            try:
                return _ask(contact, secret, hello, min(left, CONNECT_SECONDS), deadline)
            except ConfigMismatch as error:
                raise ConfigMismatch(f"this process cannot join: {error}") from error
            except (OSError, PeerLost, ProtocolError) as error:  # TimeoutError is an OSError
                troubles[contact] = getattr(error, "strerror", None) or str(error)
        time.sleep(max(0.0, min(ROUND_SECONDS, deadline - time.monotonic())))


def _ask(
    contact: tuple[str, int], secret: bytes, hello: dict[str, object], connect_seconds: float, deadline: float
) -> Admission:
    with Client.connect(*contact, secret, JOIN_ROLE, hello, connect_seconds) as client:
        answer = client.receive(max(0.0, deadline - time.monotonic()))
    match answer:
        case Admission():
            return answer
        case Denied(reason):
            raise JoinDenied(f"this process may not join: {reason}")
    raise ProtocolError(f"a {type(answer).__name__} where an answer to a request to join was expected")

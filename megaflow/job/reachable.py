"""Addresses at which others reach a process of this machine. They are found and tested, not assumed.

The likeliest is the address from which this machine reaches them. Then come the addresses of its name, as others know
it, and those of all its interfaces. If this machine reaches them from a loopback address, that is the only one.
"""

import contextlib
import fcntl
import socket
import struct
import threading
from collections.abc import Sequence

from megaflow.errors import UsageError
from megaflow.job.spec import BACKLOG, Address
from megaflow.timely.communication.address import address_text, is_loopback

PROBE_SECONDS = 3.0
REACH_SECONDS = 5.0  # in which the system sends three requests to connect
SIOCGIFADDR = 0x8915  # of <linux/sockios.h>: an interface's address


def listen_toward(place: Address, name: str) -> tuple[tuple[str, ...], list[socket.socket]]:
    """Return this machine's addresses for a process at `place`, and two sockets that listen on all of them.

    `name` is the name by which others know this machine, "" if unknown. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    near, _ = ends_of_way(place)
    hosts = (near,) if is_loopback(near) else tuple(dict.fromkeys((near, *addresses_of(name), *interfaces())))
    bound = near if len(hosts) == 1 else "" if family == socket.AF_INET else "::"
    return hosts, [socket.create_server((bound, 0), family=family, backlog=BACKLOG) for _ in range(2)]


def ends_of_way(place: Address) -> tuple[str, str]:
    """Return the address from which this machine reaches a place, and that of the place. Raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(place)  # on a datagram socket this sends nothing, but selects the local address
        return str(way.getsockname()[0]), str(way.getpeername()[0])


def check_listening(listen: str, address: Address, contact: Address) -> None:
    """Raise UsageError if a process listens at an address that a process of another machine cannot reach.

    `listen` is what the user gave, `address` what others learn, `contact` the place of another process.
    """
    if not is_loopback(address[0]):
        return
    try:
        near, there = ends_of_way(contact)
    except OSError:  # connecting to it gives the reason
        return
    if not is_loopback(near) and near != there:
        raise UsageError(
            f"--listen {listen}: the job at {address_text(contact)} is on another machine, which cannot reach this "
            f"process at {address[0]}. Give an address of this machine, such as --listen {near}."
        )


def addresses_of(host: str) -> list[str]:
    """Return the addresses of a name that other machines can also use."""
    try:
        found = [info[4][0] for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)] if host else []
    except OSError:
        return []
    return [str(address) for address in found if not is_loopback(str(address))]


def interfaces() -> list[str]:
    """Return the IPv4 addresses of this machine, except loopback addresses."""
    found = []
    with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as any_one:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                answer = fcntl.ioctl(any_one.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not is_loopback(address)]


def trouble_of(place: Address) -> str:
    """Return why this machine cannot connect to an address, and what to do; "" if it can.

    Blocks for REACH_SECONDS at most, if the host is an IP address.
    """
    try:
        socket.create_connection(place, REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the last two: it is not an address
        why = getattr(error, "strerror", None) or error
        return (
            f"the job's launcher on {socket.gethostname()} cannot connect to it at {address_text(place)}: {why}. Give "
            "an address of this process's machine that the launcher can reach: --listen HOST:PORT"
        )
    return ""


def probe(places: Sequence[Address]) -> list[Address]:
    """Return those of these addresses that can be connected to. All are tried at once."""
    reached: dict[Address, bool] = {}

    def attempt(place: Address) -> None:
        with contextlib.suppress(OSError), socket.create_connection(place, PROBE_SECONDS):
            reached[place] = True

    threads = [threading.Thread(target=attempt, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROBE_SECONDS + 1.0)
    return [place for place in places if place in reached]

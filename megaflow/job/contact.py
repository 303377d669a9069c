"""How whoever steers a job finds it: by its file, or by the address of its coordinator."""

import contextlib
import os
from collections.abc import Iterator

from megaflow.control.client.commands import Conversation
from megaflow.errors import JobNotFound, PeerLost, UsageError
from megaflow.job.job_file import find
from megaflow.timely.communication.client import Client


@contextlib.contextmanager
def conversation(job: str | None, connect: str | None, timeout: float) -> Iterator[Conversation]:
    """Give a conversation with the coordinator of the job that is meant. Raises MegaflowError if there is none."""
    if timeout <= 0:
        raise UsageError(f"--timeout must be more than 0 seconds, not {timeout:g}")
    if connect is None:
        found = find(job)
        host, port, secret, name = found.host, found.port, found.secret, f"job {found.name!r}"
    else:
        if job is not None:
            raise UsageError("--job and --connect both name a job: give one of them")
        host, port = parse_address(connect)
        secret, name = os.environ.get("MEGAFLOW_SECRET", "").strip(), f"the job at {connect}"
        if not secret:
            raise UsageError("--connect needs the job's secret in MEGAFLOW_SECRET")

    def reach(host: str, port: int) -> Client:
        try:
            return Client.connect(host, port, secret.encode(), "control", {}, timeout)
        except (OSError, PeerLost) as error:
            raise JobNotFound(f"{name} does not answer at {host}:{port}: {error}") from error

    def again() -> Client | None:
        with contextlib.suppress(JobNotFound):
            moved = find(found.name) if connect is None else None
            return None if moved is None else reach(moved.host, moved.port)
        return None

    with contextlib.closing(Conversation(reach(host, port), timeout, reach, again)) as talk:
        yield talk


def parse_address(text: str, option: str = "--connect") -> tuple[str, int]:
    """Return host and port; `option` is what the text was given for.

    >>> parse_address("[::1]:2101")
    ('::1', 2101)
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:2101")
    return host.removeprefix("[").removesuffix("]"), int(port)

"""How a command or a process finds a running job: by the job's file, or by the address of one of its processes."""

import contextlib
import time
from collections.abc import Callable, Iterator

from megaflow.control.client.conversation import QUIET_AGAIN_SECONDS, QUIET_SECONDS, Conversation
from megaflow.errors import JobNotFound, JobRecovers, PeerLost, UsageError
from megaflow.job.job_file import Job, find
from megaflow.job.side_door import Silence, find_reason
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.secret import given_secret
from megaflow.timely.communication.tcp import is_port, may_be_host

RECOVERY_POLL_SECONDS = 0.1
LOSS_SECONDS = 10.0  # from when a process is lost until the launcher has ended the others, and says that it goes on
TIMEOUT_SECONDS_MAX = 1_000_000  # eleven days; the system counts in milliseconds, and only to 2**31


@contextlib.contextmanager
def conversation(
    job: str | None,
    connect: str | None,
    timeout: float,
    tell: Callable[[Silence], None] = lambda silence: None,
    waits: bool = True,
) -> Iterator[Conversation]:
    """Give a conversation with the coordinator of the job that is meant. Raises MegaflowError if there is none.

    `tell` is told when the coordinator has been silent for two seconds, and then again and again; what it raises goes
    on to whoever asks. A job that recovers from a loss is waited for, unless not `waits`; JobRecovers if it is not back
    within `timeout`, or has lost a process before it was done with what it was asked.
    """
    checked_timeout(timeout)
    found = None
    if connect is None:
        found = find_back(job, timeout if waits else 0.0)
        host, port, secret, name = found.host, found.port, found.secret, f"job {found.name!r}"
    else:
        if job is not None:
            raise UsageError("--job and --connect both name a job. Give only one of them.")
        host, port = parse_address(connect, "--connect")
        secret, name = needed_secret("--connect"), f"the job at {connect}"

    def silent(sent: bool) -> str:
        silence = find_reason(found, found.name if found is not None else str(connect), sent)
        tell(silence)
        return str(silence)

    def reach(host: str, port: int) -> Client:
        why, patience, left = "", QUIET_SECONDS, timeout
        while True:
            try:
                return Client.connect(host, port, secret.encode(), "control", {}, min(left, patience))
            except TimeoutError as error:
                if (left := left - patience) <= 0:
                    place = f"{name} does not answer at {host}:{port}"
                    why = why or silent(False)
                    raise JobNotFound(f"{place} within {timeout:g} s, so the request was not sent: {why}") from error
                why, patience = silent(False), QUIET_AGAIN_SECONDS
            except (OSError, PeerLost) as error:
                raise JobNotFound(f"{name} does not answer at {host}:{port}: {error}") from error

    def again(besides: Address | None = None) -> Client | None:
        with contextlib.suppress(JobNotFound):
            moved = find(found.name) if found is not None else None
            return None if moved is None or (moved.host, moved.port) == besides else reach(moved.host, moved.port)
        return None

    def first() -> Client:
        try:
            return reach(host, port)
        except JobNotFound:  # perhaps the coordinator has left since the job's file was read
            client = again((host, port))
            if client is None and found is not None and has_lost(found):
                back = find_back(found.name, timeout if waits else 0.0)
                client = reach(back.host, back.port)
            if client is None:
                raise
            return client

    talking = Conversation(first(), timeout, reach, again, quiet=lambda: silent(True))
    with contextlib.closing(talking) as talk, telling_loss(found):
        yield talk


@contextlib.contextmanager
def telling_loss(job: Job | None) -> Iterator[None]:
    """Turn a lost connection into JobRecovers if the job goes on nevertheless; None: that is not known."""
    try:
        yield
    except PeerLost as error:
        if job is None or not has_lost(job):
            raise
        raise JobRecovers(
            f"Job {job.name!r} lost a process and is resuming from its last checkpoint, so the request may not "
            "have been carried out. Check its status, then try again."
        ) from error


def find_back(name: str | None, timeout_seconds: float) -> Job:
    """Return a job that runs, as `find` does; wait for one that recovers. Raises JobRecovers if it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while (found := find(name)).recovering:
        if time.monotonic() >= deadline:
            raise JobRecovers(
                f"Job {found.name!r} lost a process and is recovering ({found.recovering}). It was not back "
                f"within {timeout_seconds:g} s, so the request was not sent."
            )
        time.sleep(RECOVERY_POLL_SECONDS)
    return found


def has_lost(job: Job) -> bool:
    """Tell whether a job that does not answer has lost a process and goes on, as its file tells after a while.

    Blocks until that says so, or the job has gone, for LOSS_SECONDS at most; not at all if it is none that goes on.
    """
    deadline = time.monotonic() + LOSS_SECONDS
    while job.life and time.monotonic() < deadline:
        try:
            if find(job.name).life > job.life:
                return True
        except JobNotFound:
            return False
        time.sleep(RECOVERY_POLL_SECONDS)
    return False


def checked_timeout(seconds: float) -> float:
    """Return what `--timeout` says. Raises UsageError if nobody can wait for that."""
    if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        raise UsageError(f"--timeout must be more than 0 seconds and at most {TIMEOUT_SECONDS_MAX}, not {seconds:g}.")
    return seconds


def find_contact(target: str) -> tuple[Address, bytes]:
    """Return where to ask for the job that `--join` NAME or HOST:PORT means, and its secret.

    Raises UsageError for a wrong address or a missing secret, JobNotFound if no job has the name.
    """
    if ":" not in target:
        found = find(target)
        return (found.host, found.port), found.secret.encode()
    return parse_address(target, "--join"), needed_secret("--join HOST:PORT").encode()


def needed_secret(option: str) -> str:
    """Return the secret of the environment, which `option` needs. Raises UsageError if there is none."""
    secret = given_secret()
    if not secret:
        raise UsageError(f"{option} needs the job's secret in MEGAFLOW_SECRET.")
    return secret


def parse_address(text: str, option: str) -> Address:
    """Return host and port; `option` is what the text was given for.

    >>> parse_address("[::1]:2101", "--connect")
    ('::1', 2101)
    """
    host, _, port = text.rpartition(":")
    if not may_be_host(host) or not is_port(port) or int(port) == 0:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:2101.")
    return host.removeprefix("[").removesuffix("]"), int(port)

"""How a command or a process finds a running job: by the job's file, or by the address of one of its processes."""

import contextlib
import time
from collections.abc import Callable, Iterator

from megaflow.control.client import commands
from megaflow.control.client.conversation import QUIET_AGAIN_SECONDS, QUIET_SECONDS, Conversation
from megaflow.errors import JobNotFound, JobRecovers, NoAnswer, PeerLost, UsageError
from megaflow.job.admin_socket import LAUNCHER_SECONDS, Silence, find_reason, stop_restart
from megaflow.job.job_file import Job, find, is_suspended
from megaflow.job.spec import Address
from megaflow.timely.communication.address import is_port, may_be_host
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.secret import given_secret

RECOVERY_POLL_SECONDS = 0.1
LAUNCHER_AGAIN_SECONDS = 0.1  # replaces LAUNCHER_SECONDS if the launcher did not answer before
SUSPENDED_SECONDS = 1.0  # replaces QUIET_SECONDS if the launcher is suspended: the coordinator probably is, as well
LEAST_SECONDS = 0.001  # a socket with a timeout of 0 does not wait at all, and raises another error
LOSS_SECONDS = 10.0  # from the loss of a process until the launcher has ended the others and reports that it resumes
TIMEOUT_SECONDS_MAX = 1_000_000  # eleven days; the system counts milliseconds, only up to 2**31


@contextlib.contextmanager
def conversation(
    job: str | Job | None,
    connect: str | None,
    timeout: float,
    tell: Callable[[Silence], None] = lambda silence: None,
    back_seconds: float | None = None,
) -> Iterator[Conversation]:
    """Yield a conversation with the coordinator of a job: its name, or a Job that has no file. Raises MegaflowError.

    `tell` is called when the coordinator has been silent for two seconds, and then repeatedly. Its errors reach the
    caller. This waits for a job that is recovering from a loss. Raises JobRecovers if the job is not back within
    `back_seconds`, by default `timeout`, or if it loses a process before it has completed the request.
    """
    until = time.monotonic() + checked_timeout(timeout)  # to connect; each request then has its own timeout
    back_until = until if back_seconds is None else time.monotonic() + back_seconds
    found = None
    if connect is None:
        found = find_back(job, back_until, timeout)
        host, port, secret, name = found.host, found.port, found.secret, f"job {found.name!r}"
    else:
        if job is not None:
            raise UsageError("--job and --connect both name a job. Give only one of them.")
        host, port = parse_address(connect, "--connect")
        secret, name = needed_secret("--connect"), f"the job at {connect}"
    patience = LAUNCHER_SECONDS

    def silent(sent: bool) -> str:
        nonlocal patience
        silence = find_reason(found, found.name if found is not None else str(connect), sent, patience)
        patience = LAUNCHER_AGAIN_SECONDS if silence.unasked else LAUNCHER_SECONDS
        tell(silence)
        return str(silence)

    def reach(host: str, port: int, until: float | None = None) -> Client:
        until = time.monotonic() + timeout if until is None else until
        why, quiet = "", SUSPENDED_SECONDS if found is not None and is_suspended(found) else QUIET_SECONDS
        while True:
            try:
                left = max(0.0, until - time.monotonic())
                return Client.connect(host, port, secret.encode(), "control", {}, min(left, quiet) or LEAST_SECONDS)
            except TimeoutError as error:
                if time.monotonic() >= until:
                    place = f"{name} does not answer at {host}:{port}"
                    why = why or silent(False)
                    raise NoAnswer(f"{place} within {timeout:g} s, so the request was not sent: {why}") from error
                why, quiet = silent(False), QUIET_AGAIN_SECONDS
            except (OSError, PeerLost) as error:
                raise JobNotFound(f"{name} does not answer at {host}:{port}: {error}") from error

    def again(besides: Address | None = None) -> Client | None:
        with contextlib.suppress(JobNotFound, NoAnswer):
            moved = find(found.name) if found is not None and found.folder is not None else None
            return None if moved is None or (moved.host, moved.port) == besides else reach(moved.host, moved.port)
        return None

    def first() -> Client:
        try:
            return reach(host, port, until)
        except JobNotFound:  # perhaps the coordinator has left since the job's file was read
            client = again((host, port))
            if client is None and found is not None and has_lost(found, until - time.monotonic()):
                back = find_back(found.name, back_until, timeout)
                client = reach(back.host, back.port, until)
            if client is None:
                raise
            return client

    talking = Conversation(first(), timeout, reach, again, quiet=lambda: silent(True))
    with contextlib.closing(talking) as talk, telling_loss(found, timeout):
        yield talk


def stop(
    job: str | Job | None,
    connect: str | None,
    timeout: float,
    tell: Callable[[Silence], None] = lambda silence: None,
    drain: bool = True,
) -> None:
    """Stop a job as `commands.stop_job` does, and block until it has stopped. Raises as `conversation`.

    A job that resumes after a loss has no coordinator. While it waits for processes, its launcher stops it.
    """
    until = time.monotonic() + checked_timeout(timeout)
    while connect is None and (found := job if isinstance(job, Job) else find(job)).recovering:
        if (left := until - time.monotonic()) <= 0:
            find_back(found, 0.0, timeout)  # raises the error
        if stop_restart(found, left):
            return
        time.sleep(RECOVERY_POLL_SECONDS)
    with conversation(job, connect, timeout, tell) as talk:
        commands.stop_job(talk, drain)


@contextlib.contextmanager
def telling_loss(job: Job | None, timeout_seconds: float) -> Iterator[None]:
    """Turn a lost connection into JobRecovers if the job continues nevertheless. `job` None: this is unknown."""
    try:
        yield
    except PeerLost as error:
        if job is None or not has_lost(job, timeout_seconds):
            raise
        raise JobRecovers(
            f"Job {job.name!r} lost a process and is resuming from its last checkpoint, so the request may not "
            "have been carried out. Check its status, then try again."
        ) from error


def find_back(name: str | Job | None, until: float, timeout_seconds: float) -> Job:
    """Return a running job, as `find` does, or a Job itself.

    Waits for a recovering job until that time of the monotonic clock. Raises JobRecovers if it takes longer.
    `timeout_seconds` is the user's timeout, for the message.
    """
    while (found := name if isinstance(name, Job) else find(name)).recovering:
        if time.monotonic() >= until:
            error = JobRecovers(
                f"Job {found.name!r} lost a process and is recovering ({found.recovering}). It was not back "
                f"within {timeout_seconds:g} s, so the request was not sent."
            )
            error.job, error.restart = found.name, found.recovering
            raise error
        time.sleep(RECOVERY_POLL_SECONDS)
    return found


def has_lost(job: Job, timeout_seconds: float) -> bool:
    """Return whether a silent job has lost a process and is resuming. Its file shows this after a while.

    Blocks until the file shows it or the job is gone, at most for `timeout_seconds` and LOSS_SECONDS. Does not block if
    the job has no file, cannot resume after a loss, or has a suspended launcher.
    """
    deadline = time.monotonic() + min(timeout_seconds, LOSS_SECONDS)
    while job.attempt and job.folder is not None and time.monotonic() < deadline and not is_suspended(job):
        try:
            if find(job.name).attempt > job.attempt:
                return True
        except JobNotFound:
            return False
        time.sleep(RECOVERY_POLL_SECONDS)
    return False


def checked_timeout(seconds: float) -> float:
    """Return the value of `--timeout`. Raises UsageError if it is not a possible timeout."""
    if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        raise UsageError(f"--timeout must be more than 0 seconds and at most {TIMEOUT_SECONDS_MAX}, not {seconds:g}.")
    return seconds


def find_contact(target: str) -> tuple[Address, bytes]:
    """Return the address to ask, and the secret, for the job that `--join` NAME or HOST:PORT names.

    Raises UsageError for a wrong address or a missing secret, JobNotFound if no job has the name.
    """
    if ":" not in target:
        found = find(target)
        return (found.host, found.port), found.secret.encode()
    return parse_address(target, "--join"), needed_secret("--join HOST:PORT").encode()


def needed_secret(option: str) -> str:
    """Return the secret from the environment, which `option` needs. Raises UsageError if there is none."""
    secret = given_secret()
    if not secret:
        raise UsageError(f"{option} needs the job's secret in MEGAFLOW_SECRET.")
    return secret


def parse_address(text: str, option: str) -> Address:
    """Return host and port. `option` is the option that the text was given for.

    >>> parse_address("[::1]:2101", "--connect")
    ('::1', 2101)
    """
    host, _, port = text.rpartition(":")
    if not may_be_host(host) or not is_port(port) or int(port) == 0:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:2101.")
    return host.removeprefix("[").removesuffix("]"), int(port)

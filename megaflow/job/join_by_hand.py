"""`megaflow run --join`: this process becomes a further process of a running job.

It takes the job's terms from the job; the dataflow is that of its own file, and compared with the others' when it
joins. Its outputs go to the job's launcher, which comes for them. It can join from another machine, if the
processes of the job listen where it can reach them, and the other way round.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from megaflow.control.messages import Terms
from megaflow.errors import ConfigMismatch, JobNotFound, MegaflowError, PeerFailed, PeerLost, UsageError
from megaflow.job.contact import parse_address
from megaflow.job.job_file import find
from megaflow.job.job_settings import ask_terms
from megaflow.job.launcher.children import address_of, listening
from megaflow.job.profile.report import check_profile, profile_folder
from megaflow.job.rendering import Form
from megaflow.job.spec import Address, AppFile, ChildSpec, Joiner, ProfileSpec
from megaflow.job.worker.child import Process
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.dataflow.error_notes import format_user_traceback


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Which job to join, and how."""

    app: AppFile
    contact: Address  # of any process of the job
    secret: bytes
    server: int | None = None  # the worker to be bootstrapped by; None: the coordinator chooses
    args: tuple[str, ...] = ()
    listen: str = "127.0.0.1"
    debug: bool = False
    connect_timeout_seconds: float = 30.0
    profile: ProfileSpec | None = None  # of this process's workers


def find_contact(target: str) -> tuple[Address, bytes]:
    """Return where to ask for the job that NAME or HOST:PORT means, and its secret.

    Raises UsageError for a wrong address or a missing secret, JobNotFound if no job has the name.
    """
    if ":" not in target:
        found = find(target)
        return (found.host, found.port), found.secret.encode()
    contact = parse_address(target, "--join")
    secret = os.environ.get("MEGAFLOW_SECRET", "").strip()
    if not secret:
        raise UsageError("--join HOST:PORT needs the job's secret in MEGAFLOW_SECRET")
    return contact, secret.encode()


def join_job(options: JoinOptions, report: Callable[[str], None] = lambda text: None) -> None:
    """Take part in a job to its end, or until this process is removed. Blocks.

    `report` gets what a user should be told. Raises JobNotFound if nobody answers, JoinDenied if the job does not take
    this process, PeerFailed with the traceback for what the user's code raises here, and PeerLost if the job ends
    otherwise.
    """
    place = address_text(options.contact)
    try:
        terms = ask_terms(options.contact, options.secret, options.connect_timeout_seconds)
    except (OSError, PeerLost) as error:
        raise JobNotFound(f"no job answers at {place}: {error}") from error
    if terms.output not in get_args(Form):
        raise ConfigMismatch(f"the job at {place} wants its output as {terms.output!r}: is it of another version?")

    check_profile(options.profile, terms.workers)

    def joined(worker: int) -> None:
        removal = f"megaflow control remove-workers --job {terms.job} --id {worker}"
        report(f"worker {worker} of job {terms.job!r}; to end it: {removal}")

    process = Process(_spec(options, terms), joined)
    try:
        with profile_folder(options.profile, report):
            process.run()
    except MegaflowError:
        raise
    except Exception as error:
        raise PeerFailed(format_user_traceback(error, options.debug)) from error


def _spec(options: JoinOptions, terms: Terms) -> ChildSpec:
    form: dict[str, Form] = {each: each for each in get_args(Form)}
    with listening(options.listen, 1) as listeners:
        return ChildSpec(
            job=terms.job,
            part=Joiner(options.contact, options.server),
            workers=terms.workers,
            address=address_of(listeners[0]),
            listener_fd=listeners[0].detach(),
            secret=options.secret,
            app=options.app,
            args=options.args,
            rate=terms.rate,
            encoding_errors=terms.encoding_errors,
            output=form[terms.output],
            debug=options.debug,
            connect_timeout_seconds=options.connect_timeout_seconds,
            profile=options.profile,
        )

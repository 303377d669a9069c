"""`megaflow run --join`: this process becomes a further process of a running job.

It gets the job's settings from the job; the dataflow is that of its own file, whose code is compared with the
coordinator's before it joins (see `megaflow.job.worker.fingerprint`). Its outputs go to the job's launcher, which
connects to it. It can join from another machine, if the processes of the job listen where it can reach them, and the
other way round.
"""

import os
from collections.abc import Callable
from dataclasses import replace

from megaflow.control.messages import Done, JobSettings, Moved, Request, SettingsQuery
from megaflow.errors import ConfigMismatch, JobNotFound, MegaflowError, PeerFailed, PeerLost, ProtocolError, StateKept
from megaflow.job.profile.report import check_profile, profile_folder
from megaflow.job.spec import FORMS, Address, ChildSpec, JobSpec, JoiningProcess, address_of, listening
from megaflow.job.worker.child import Process
from megaflow.job.worker.departure import Departure, handled
from megaflow.program import Worker
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.dataflow.error_notes import format_user_traceback


def join_job(
    spec: JobSpec,
    part: JoiningProcess,
    secret: bytes,
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Take part in a job to its end, or until this process is removed, for which Ctrl-C asks. Blocks.

    `part` names any process of the job; what all its processes have in common replaces what `spec` says. `report` gets
    what a user should be told, once each worker may own bins, or, if it is to wait for that, has joined. Raises
    JobNotFound if nothing answers, JoinDenied if the job does not take this process, PeerFailed with the traceback for
    what the user's code raises here, and PeerLost if the job ends otherwise; StateKept if that keeps its state.
    """
    place = address_text(part.contact)
    try:
        settings = ask_settings(part.contact, secret, spec.connect_timeout_seconds)
    except (OSError, PeerLost) as error:
        raise JobNotFound(f"No job answers at {place}: {error}") from error
    for _, form in settings.outputs:
        if form.partition(":")[0] not in FORMS:
            raise ConfigMismatch(
                f"The job at {place} wants its output in the unknown form {form!r}. Does it run another version of "
                "megaflow?"
            )
    if settings.durable is not None and not os.path.isdir(settings.durable.folder):
        raise ConfigMismatch(
            f"The job at {place} keeps its state in {settings.durable.folder}, which is not a folder on this "
            "machine. All machines must see it under this path."
        )
    check_profile(spec.profile, settings.workers)
    name = settings.job
    spec = replace(
        spec, name=name, workers=settings.workers, rate=settings.rate, encoding_errors=settings.encoding_errors
    )

    def joined(worker: Worker) -> None:
        number, server = worker.index, worker.membership.coordinator
        commands = {"to end it": f"remove-workers --job {name} --id {number}"}
        if worker.stateful and part.wishes:
            commands = {"to give it bins": f"move-bins --job {name} --balance", **commands}
        elif worker.stateful:
            words = f"bootstrap --job {name} --server {server} --worker {number}"
            commands = {"to give it its routing table": words}
        todo = "; ".join(f"{what}: megaflow control {words}" for what, words in commands.items())
        report(f"worker {number} of job {name!r}; {todo}")
        departure.joined(number)

    with listening(spec.listen, 1) as [listener]:
        address = address_of(listener)
        child = ChildSpec(
            spec, name, part, address, listener.detach(), secret, outputs=settings.outputs, durable=settings.durable,
            rows=settings.rows, lines=settings.lines, followed=settings.followed,
            piped=settings.piped, unordered=settings.unordered,
        )  # fmt: skip
    process = Process(child, joined)
    departure = Departure(address, secret, lambda: bool(process.shared.stagings), report)
    try:
        with profile_folder(spec.profile, report), handled(departure):
            process.run()
    except PeerLost as error:
        if settings.durable is None:
            raise
        raise StateKept(
            f"{error}; this process ends, and the others take over its bins if the job resumes from its last "
            "checkpoint; to join again, run the same command"
        ) from error
    except (MegaflowError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PeerFailed(format_user_traceback(error, spec.debug)) from error


def ask_settings(contact: Address, secret: bytes, timeout_seconds: float) -> JobSettings:
    """Ask a process of a job for the job's settings. Raises what `Client.connect` and `Client.receive` do."""
    with Client.connect(*contact, secret, "control", {}, timeout_seconds) as client:
        client.send(Request(0, SettingsQuery()))
        while isinstance(answer := client.receive(timeout_seconds), Moved):
            pass  # whom it asks is of no matter
    match answer:
        case Done(_, JobSettings() as settings):
            return settings
    raise ProtocolError(f"{client.address} answered the request for the job's settings with {answer!r:.100}.")

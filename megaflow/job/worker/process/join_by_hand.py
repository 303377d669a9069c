"""`megaflow run --join`: this process becomes another process of a running job.

It gets the job's settings from the job and the dataflow from its own file. Before it joins, its code is compared with
the coordinator's (see `megaflow.job.worker.process.fingerprint`). The job's launcher connects to the process and
receives its outputs. The process can join from another machine if the processes of the job listen where it can reach
them, and it listens where they can reach it.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from megaflow.control.messages import Done, JobSettings, Moved, Request, SettingsQuery
from megaflow.durable.incarnation import DurablePart, check_same_store
from megaflow.durable.local_folder import open_in_a_job
from megaflow.durable.store import Store
from megaflow.errors import ConfigMismatch, JobNotFound, MegaflowError, PeerFailed, PeerLost, ProtocolError, StateKept
from megaflow.job.profile.report import check_profile, profile_folder
from megaflow.job.reachable import check_listening
from megaflow.job.spec import FORMS, Address, ChildSpec, JobSpec, JoiningProcess, address_of, listening
from megaflow.job.worker.process.child import Process
from megaflow.job.worker.process.leave_on_signal import AGAIN, AGAIN_WITH_STATE, LeaveOnSignal, handled
from megaflow.program import Worker
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.client import Client
from megaflow.timely.dataflow.error_notes import format_user_traceback


def check_state(part: DurablePart, place: str) -> None:
    """Raise ConfigMismatch or StoreError unless this process sees the state folder of the job at this address."""
    if not os.path.isdir(part.folder):
        raise ConfigMismatch(
            f"The job at {place} keeps its state in {part.folder}, which is not a folder on this machine. All machines "
            "must see it under this path."
        )
    with closing(Store(open_in_a_job(part.folder))) as store:
        check_same_store(store, part)


def join_job(
    spec: JobSpec, part: JoiningProcess, secret: bytes, report: Callable[[str], None] = lambda text: None
) -> None:
    """Take part in a job until it ends or this process is removed; Ctrl-C requests the removal. Blocks.

    `part` names any process of the job. Settings that all its processes share replace those of `spec`. `report` shows a
    text to the user once each worker may own bins, or, if it waits for its routing table, once it has joined. Raises
    JobNotFound if nothing answers, JoinDenied if the job does not admit this process, PeerFailed with the traceback if
    the user's code raises here, and PeerLost if the job ends otherwise; StateKept instead if the job keeps its state.
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
    if settings.durable is not None:
        check_state(settings.durable, place)
    check_profile(spec.profile, settings.workers)
    name = settings.job
    spec = replace(
        spec, name=name, workers=settings.workers, rate=settings.rate, encoding_errors=settings.encoding_errors,
        line_size_max=settings.line_size_max,
    )  # fmt: skip

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
        leave.joined(number)

    with listening(spec.listen, 1) as [listener]:
        address = address_of(listener)
        check_listening(spec.listen, address, part.contact)
        child = ChildSpec(
            spec, name, part, address, listener.detach(), secret, outputs=settings.outputs, durable=settings.durable,
            inputs=settings.inputs, piped=settings.piped,
        )  # fmt: skip
    process = Process(child, joined)
    again = AGAIN if settings.durable is None else AGAIN_WITH_STATE
    leave = LeaveOnSignal(address, secret, lambda: bool(process.shared.stagings), report, again)
    try:
        with profile_folder(spec.profile, report), handled(leave):
            process.run()
    except (PeerLost, PeerFailed) as error:
        if (stopped := process.shared.launcher.stopped) is not None:
            report(f"job {name!r} has stopped at checkpoint {stopped.checkpoint}, so this process ends")
            return
        if settings.durable is None or not isinstance(error, PeerLost):
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
            pass  # the answer does not depend on which process is asked
    match answer:
        case Done(_, JobSettings() as settings):
            return settings
    raise ProtocolError(f"{client.address} answered the request for the job's settings with {answer!r:.100}.")

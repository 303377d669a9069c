"""A rehearsal: check that a program can resume from a store, before anything in the store or the output changes.

A separate process loads the program and builds its dataflow on a lone worker, as `megaflow graph` does. It reports
everything that the workers would refuse when they build, except what `StateBackend.rehearse` names. The workers check
again, as the program may have changed in between.

1. The process receives its task by standard input and answers by its original standard output. The program gets the
   null device in place of both and of standard error. Its output is not shown, because the workers will print it again.
   A fork must not keep the pipe of the answer open: the launcher waits for the pipe's end, and the fork may live on.
2. It opens the sinks that can tell what they have delivered, to compare that with the store (`lineage`).
3. The process reads the store as workers do, and writes nothing there. If another job might remove files of the
   checkpoint meanwhile, the launcher has them open, and passes them to this process (`Rehearsal.opened`).
"""

import json
import os
import pickle
import sys

from megaflow.durable.local_folder import open_in_a_job
from megaflow.durable.store import Store
from megaflow.errors import MegaflowError, OutputError, PeerFailed, StoreError
from megaflow.job.files.followed_files import ONLY_FOLLOWED
from megaflow.job.nested_start import enter
from megaflow.job.spec import Rehearsal, Rehearsed
from megaflow.job.worker.process.build_only import Enough, build_dry, build_only_worker
from megaflow.job.worker.process.flow import Flow, build_flow
from megaflow.job.worker.process.lifeline import die_with_parent
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.reading.event_reports import check_skew
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.job.worker.writing.output import NamedOutputs
from megaflow.megaphone.base.durability import Durability
from megaflow.own_files import keep
from megaflow.timely.dataflow.error_notes import format_user_traceback

STDIN, STDOUT, STDERR = range(3)


def rehearse(task: Rehearsal, app: App | None = None, store: Store | None = None) -> Rehearsed | MegaflowError:
    """Build a program, and compare the store with the places of its sinks; return what was found, or what prevents it.

    `app` and `store` replace those that the task names.
    """
    args, inputs = task.job.args, task.inputs
    followed = {name for name, *_ in inputs.followed}
    worker = build_only_worker(args)

    def open_store(folder: str) -> Store:
        opened = open_in_a_job(folder)
        opened.adopt(task.opened)
        return Store(opened)

    kept = StateBackend(worker, task.part, open_store if store is None else lambda folder: store)
    app = App(task.job.app) if app is None else app

    def build(flow: Flow) -> None:
        durability = flow.scope.ref.graph.extension(Durability)
        kept.equip(durability)
        durability.restore = None  # nothing is loaded
        build_flow(app.function(), flow, task.has_lines)
        if task.job.max_skew is not None:
            check_skew(flow.scope.ref.graph, {*inputs.lines} - followed)
        kept.check(flow.scope.ref.graph)

    try:
        app.function()
        named, outputs = NamedInputs(inputs.rows, inputs.lines), NamedOutputs(task.outputs)
        sources, sinks = build_dry(worker, build, args, named, outputs)
        kept.rehearse(sources.union(name or ONLY_FOLLOWED for name in followed))
        newer, there = sinks.compared(task.part.standing)
    except StoreError as error:
        return error
    except OutputError as error:  # of a sink that cannot be opened, as the workers would report it
        return PeerFailed("\n".join([str(error), *getattr(error, "__notes__", ())]))
    except Enough:
        return PeerFailed("The dataflow function must not step its worker. Leave that to megaflow.")
    except BaseException as error:
        return PeerFailed(format_user_traceback(error, task.job.debug))
    return Rehearsed(sources, kept.given_up(), newer, there, kept.rewindowed(), kept.converts())


def main() -> None:
    """Perform the task on standard input, and answer."""
    die_with_parent()
    enter()
    task = pickle.load(sys.stdin.buffer)
    assert isinstance(task, Rehearsal), "the launcher sends nothing else"
    answer = keep(os.dup(STDOUT))
    null = os.open(os.devnull, os.O_RDWR)
    for file in (STDIN, STDOUT, STDERR):
        os.dup2(null, file)
    match rehearse(task):
        case StoreError() as error:
            found: dict[str, object] = {"refused": str(error)}
        case MegaflowError() as error:
            found = {"failed": str(error)}
        case Rehearsed(sources, given_up, newer, there, windows, converts):
            found = {"sources": sorted(sources), "given up": given_up, "newer": newer, "found": there,
                     "rewindowed": windows, "converts": converts}  # fmt: skip
    with open(answer, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)  # even if threads of the program still run

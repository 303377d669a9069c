"""A rehearsal: whether a program can go on with what a store has, before anything of the store or the output changes.

A process of its own loads the program and builds its dataflow on a lone worker, as `megaflow graph` does. All that the
workers would refuse when they build, but for what is said at `KeptState.rehearse`, is refused here. They ask again:
between the two the program may have changed.

1. It gets its task by standard input and answers by what was standard output. Both are the null device for the
   program, whose words are not shown: it will say them again. A fork of it has no part in the answer, whose end the
   launcher waits for: it may live on.
2. It reads the store, as workers do, and writes nothing. If another job may remove files of the checkpoint meanwhile,
   the launcher has them open, and so has this process (`Rehearsal.opened`).
"""

import json
import os
import pickle
import sys

from megaflow.durable.local_folder import open_in_a_job
from megaflow.durable.store import FolderStore, Store
from megaflow.errors import MegaflowError, PeerFailed, StoreError
from megaflow.job.followed_files import ONLY_FOLLOWED
from megaflow.job.spec import Rehearsal
from megaflow.job.worker.child import keep_from_forks
from megaflow.job.worker.dry_build import Enough, build_dry, draughtsman
from megaflow.job.worker.flow import App, Flow, build_flow
from megaflow.job.worker.kept_state import KeptState
from megaflow.job.worker.lifeline import die_with_parent
from megaflow.megaphone.journal import Durability
from megaflow.timely.dataflow.error_notes import format_user_traceback

STDIN, STDOUT, STDERR = range(3)


def rehearse(
    task: Rehearsal, app: App | None = None, store: Store | None = None
) -> frozenset[str] | MegaflowError:
    """Build a program; return which sources it reads; or why it cannot go on with what the store has, or be built.

    `app` and `store` stand for those that the task names.
    """
    args = task.job.args
    worker = draughtsman(args)

    def open_store(folder: str) -> Store:
        opened = open_in_a_job(folder)
        opened.adopt(task.opened)
        return FolderStore(opened)

    kept = KeptState(worker, task.part, open_store if store is None else lambda folder: store)
    app = App(task.job.app) if app is None else app

    def build(flow: Flow) -> None:
        durability = flow.scope.ref.graph.extension(Durability)
        kept.equip(durability)
        durability.restore = None  # nothing is loaded
        build_flow(app.function(), flow, task.has_lines)
        kept.check(flow.scope.ref.graph)

    try:
        app.function()
        sources = build_dry(worker, build, args, task.rows, task.lines, task.outputs)
        kept.rehearse(sources.union(name or ONLY_FOLLOWED for name in task.followed))
    except StoreError as error:
        return error
    except Enough:
        return PeerFailed("The dataflow function must not step its worker. Leave that to megaflow.")
    except BaseException as error:
        return PeerFailed(format_user_traceback(error, task.job.debug))
    return sources


def main() -> None:
    """Do what standard input says, and answer."""
    die_with_parent()
    task = pickle.load(sys.stdin.buffer)
    assert isinstance(task, Rehearsal), "the launcher sends nothing else"
    answer = os.dup(STDOUT)
    keep_from_forks(answer)
    null = os.open(os.devnull, os.O_RDWR)
    for file in (STDIN, STDOUT, STDERR):
        os.dup2(null, file)
    match rehearse(task):
        case StoreError() as error:
            found: dict[str, object] = {"refused": str(error)}
        case MegaflowError() as error:
            found = {"failed": str(error)}
        case sources:
            found = {"sources": sorted(sources)}
    with open(answer, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)  # whatever threads the program has started

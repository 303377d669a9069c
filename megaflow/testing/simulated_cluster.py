"""`SimulatedCluster`, which runs jobs as `megaflow run` does, in one thread, with planned changes; and `seeds`.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from random import Random
from typing import Any

from megaflow.errors import JoinDenied, MegaflowError, UsageError
from megaflow.job.launcher.program.function_pickler import check_function
from megaflow.job.launcher.run.launch import LaunchOptions, input_of
from megaflow.job.launcher.run.supervision import is_loss
from megaflow.job.spec import JobSpec, PickledFunction
from megaflow.testing.changes import Change, check_change
from megaflow.testing.cluster_files import ClusterFiles, Lines
from megaflow.testing.cluster_job import ClusterJob, ClusterRun
from megaflow.testing.cluster_plan import ClusterPlan, Planned, random_changes
from megaflow.testing.copied_program import CopiedProgram
from megaflow.testing.kept_records import KeptOutput
from megaflow.testing.monitor import Violation
from megaflow.testing.simulated_storage import JobStorage

SEED_VARIABLE = "MEGAFLOW_SEED"
_EVERY_SECONDS = (0.01, 0.05)  # between two checkpoints
_ATTEMPTS_MAX = 100  # in one run


class SimulatedCluster:
    """A job on simulated machines: launcher, processes, network, disk and clock, in one thread, decided by `seed`.

    >>> from megaflow.testing import Join
    >>> def count(word, n, total):
    ...     return (total or 0) + n, [(word, (total or 0) + n)]
    >>> def dataflow(flow):
    ...     return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
    >>> cluster = SimulatedCluster(seed=7, processes=2)
    >>> cluster.at(record=3, do=Join())
    >>> sorted(cluster.run(dataflow, lines=[["a", "b"], ["a", "c"]]))
    [('a', 1), ('a', 2), ('b', 1), ('c', 1)]

    It runs the code of a real job. The seed decides which part acts next, so a seed that fails fails again. `processes`
    is the initial number of processes, each with `workers` workers, whose ids are 0, 1, …. A `durable` job has a store
    on a simulated disk, as with `--state`. It resumes after lost processes, and `run` resumes after a crash or a stop,
    until all lines are read. `rate` is in records per second of the simulated clock; by default the seed chooses it.
    `idle_timeout` is as in `megaflow.run`.

    Each process has its own copy of the program, as real processes do. `run` explains which objects are not copied.
    """

    def __init__(
        self,
        seed: int,
        processes: int = 2,
        workers: int = 1,
        *,
        durable: bool = False,
        rate: float | None = None,
        idle_timeout: float = 5.0,
    ) -> None:
        if processes < 1 or workers < 1:
            raise UsageError(f"A simulated cluster has at least 1 process and 1 worker, not {processes} and {workers}.")
        self.seed = seed
        self.reports: list[str] = []  # the messages that `megaflow run` prints
        self.refusals: list[str] = []  # planned changes that did not take place, each with the reason
        self.happened: list[str] = []  # changes that took place, each with the time
        self._random = Random(f"cluster {seed}")
        self._processes, self._workers = processes, workers
        self._settings = {"rate": rate, "idle_timeout": idle_timeout}
        self._storage = JobStorage(self._random, self._random.choice(_EVERY_SECONDS)) if durable else None
        self._clock = 0.0
        self._planned: list[Planned] = []
        self._disturbances = 0
        self._attempts = 0
        self._files = ClusterFiles()
        self._outputs: dict[str, KeptOutput] = {}
        self._job: ClusterJob | None = None  # while a job runs

    def __repr__(self) -> str:
        durable = ", durable=True" if self._storage is not None else ""
        return f"SimulatedCluster({self.seed}, processes={self._processes}, workers={self._workers}{durable})"

    def __reduce__(self) -> Any:
        raise TypeError("A SimulatedCluster cannot be pickled.")

    def at(
        self,
        *,
        record: int | None = None,
        seconds: float | None = None,
        prepare: str | None = None,
        commit: str | None = None,
        do: Change,
    ) -> None:
        """Plan a change of the next run, for when all given conditions are met.

        `record`: this many lines were read, by all workers from all inputs together, including headers, all lines of a
        record, and lines read again. It also counts items and the records of the program's own sources.

        `seconds`: this many seconds of the simulated clock have passed since the run began. `prepare` and `commit`: the
        sink of this name prepares, or commits, on some worker. `Kill()` then kills that worker's process just before or
        just after, as the seed decides.

        `do` is Join(), Leave(worker), Move(bin, worker), Map(workers), Kill(worker), Crash() or Stop(). Joins, leaves
        and moves happen one after the other, while records are read. `refusals` lists the changes that did not happen,
        with reasons. If the job ends before a change, `run` also warns. Raises UsageError for other arguments.
        """
        check_change(do, self._storage is not None)
        for name, value in (("record", record), ("seconds", seconds)):
            if value is not None and not value >= 0:
                raise UsageError(f"{name}= must not be negative, but it is {value!r}.")
        self._planned.append(Planned(do, record, seconds, prepare, commit))

    def disturb(self, changes: int = 3) -> None:
        """Add this number of changes, drawn from the seed, to the next run.

        Processes join and leave, and bins move. If the cluster is durable, processes are also killed, and the job
        crashes, loses power and is stopped. A greater number repeats the same first changes.
        """
        self._disturbances += changes

    @property
    def seconds(self) -> float:
        """The simulated clock. It continues from run to run, and starts at 0, which wall clocks show as 1970."""
        return self._clock if self._job is None else self._job.now()

    def run(
        self,
        dataflow: Callable[[Any], Any],
        *,
        lines: Lines | Mapping[str, Lines] | None = None,
        items: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        outputs: Mapping[str, list[Any]] | None = None,
        args: Sequence[str] = (),
        outside: Iterable[object] = (),
        close_windows: bool = False,
    ) -> list[Any]:
        """Run a `dataflow(flow)` to its end, as `megaflow.run` does; return its output records, by epoch.

        `lines` is an iterable of str, which is one file, or a list of such iterables: each is a partition, which one
        worker at a time reads in order. A dict has one of these for each name of `flow.lines(name)`. A string or path
        names real files. `items` is an iterable of values, or a dict of such iterables by name. A program that only
        uses `flow.read` needs neither. `Wait(seconds)` among lines or items delays the following ones by that long.
        Files with such lines grow. The job reads them as with `--follow`, until nothing new has come for a while.

        The run appends the records of `flow.output(name, stream)` to the list `outputs[name]`. `args` is `flow.args`.

        Each process receives a copy of the program and of all objects that it refers to. Objects in `outside` are not
        copied: a fake database, or a list that a sink or a source of the test refers to.

        If a durable cluster runs again, it resumes: with more lines in the same files, or with a changed program. The
        records are those of this run. Windows stay open for the next run unless `close_windows` is set, as with
        `--state`. Raises the exceptions of user code, the errors with which `megaflow run` refuses a job, and Violation
        if the job is stuck. A note on the error has the seed and the changes that had happened.
        """
        check_function(dataflow)
        if self._attempts and self._storage is None:
            raise UsageError("A cluster without durable=True makes one run. Make another SimulatedCluster.")
        if items is not None and self._storage is not None:
            raise UsageError(
                "items= cannot be read again after a crash, so a durable job refuses them, as --state does. Give lines="
                ", or a source by flow.read."
            )
        plan = ClusterPlan()
        plan.refusals = self.refusals
        plan.said = self.happened
        named = dict(outputs or {})
        for name in ("", *named):
            self._outputs.setdefault(name, KeptOutput()).begin()
        run = self._begin(dataflow, lines, items, tuple(args), outside, plan, named, close_windows)
        try:
            self._live(run)
        except BaseException as error:
            said = "".join(f"\n  {each}" for each in self.happened)
            outstanding = plan.outstanding()
            said += f"\n  not done: {outstanding}" if outstanding else ""
            error.add_note(f"{self!r}{': ' if said else ''}{said}")
            raise
        finally:
            plan.end()
            for name, records in named.items():
                records += self._outputs[name].of_run
        for planned in plan.missed:
            if not planned.is_drawn:
                warnings.warn(
                    f"{planned} did not take place: the run ended before, at record={plan.records} and "
                    f"seconds={self._clock - run.began:.3g}. Plan the change earlier, or give more lines.",
                    stacklevel=2,
                )
        return self._outputs[""].of_run

    def _begin(
        self, dataflow: Any, lines: Any, items: Any, args: tuple[str, ...], outside: Iterable[object],
        plan: ClusterPlan, named: Mapping[str, Any], close_windows: bool,
    ) -> ClusterRun:  # fmt: skip
        placed = self._files.place(lines)
        if close_windows and self._files.follows:
            raise UsageError("close_windows= is refused with Wait() among lines, as --follow refuses --close-windows.")
        planned, self._planned = self._planned, []
        drawn = random_changes(
            Random(f"changes {self.seed} {self._attempts}"), self._disturbances, self._files.count,
            self._storage is not None,
        )  # fmt: skip
        plan.left = [*planned, *drawn]
        self._disturbances = 0
        settings: dict[str, Any] = {
            **self._settings, "args": args, "follow": self._files.follows, "close_windows": close_windows
        }  # fmt: skip
        spec = JobSpec(PickledFunction(b"", ()), self._processes, self._workers, **settings)
        job_input = input_of(LaunchOptions(spec, placed, items=items), self.reports.append)
        program = CopiedProgram(dataflow, [self, *outside])
        if program.is_shared:
            self.reports.append("all processes share one copy of the program, which cannot be pickled")
        outputs = {name: self._outputs[name] for name in ("", *named)}
        inputs = items.values() if isinstance(items, Mapping) else [items]
        count = sum(len(each) for each in inputs if isinstance(each, Sized))
        return ClusterRun(
            self.seed, self._clock, program, job_input, self._files, count, outputs, plan, self._storage, settings
        )  # fmt: skip

    def _live(self, run: ClusterRun) -> None:
        """Run the command again and again until the job is over."""
        processes = self._processes
        for _ in range(_ATTEMPTS_MAX):
            self._attempts += 1
            job = self._job = ClusterJob(self._attempts, run, self._clock, processes, self._workers)
            try:
                launch = job.run()
            finally:
                self._clock, self._job = job.now(), None
                run.plan.records += job.records
            self.reports += launch.reports
            error = self._error_of(job)
            if error is not None and (self._storage is None or not launch.has_begun or not is_loss(error)):
                raise error
            run.plan.end_attempt("crashed" if job.crash is not None else "ended" if job.stopping is None else "stopped")
            if self._storage is not None and job.crash is not None and job.crash.power:
                self._storage.lose_power()
                for output in run.outputs.values():
                    output.lose_power(self._random)
            told = job.crash or job.stopping
            if launch.outcome in ("ended", "over") or self._storage is None:
                return
            if launch.outcome == "stopped" and told is None:  # growing files have all their lines
                return
            processes = processes if told is None or told.processes is None else told.processes
        raise Violation(f"seed {self.seed}: the job did not end within {_ATTEMPTS_MAX} attempts")

    def _error_of(self, job: ClusterJob) -> BaseException | None:
        """Return why a job has failed: preferably the error that the program raised."""
        error: MegaflowError | None = job.launch.error
        errors = (each.error for each in job.processes if each.error is not None)
        raised = next((each for each in errors if not isinstance(each, JoinDenied)), None)
        return error if error is None or raised is None else raised


def seeds(count: int) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run a test with `seed` 0, 1, …, `count` - 1, until one fails. A note on its error names the seed.

        @seeds(200)
        def test_words_are_counted(seed):
            cluster = SimulatedCluster(seed, durable=True)
            cluster.disturb()
            ...

    Set MEGAFLOW_SEED=17 in the environment to run with this seed alone.
    """

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            alone = _seed_alone()
            for seed in range(count) if alone is None else [alone]:
                try:
                    test(*args, seed=seed, **kwargs)
                except BaseException as error:
                    least = " is the least that fails" if alone is None else ""
                    error.add_note(f"seed={seed}{least}. {SEED_VARIABLE}={seed} runs the test with this seed alone.")
                    raise

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name != "seed"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # for pytest
        return run

    return decorate


def _seed_alone() -> int | None:
    """Return the seed in the environment; None if there is none. Raises UsageError if it is not an int."""
    given = os.environ.get(SEED_VARIABLE)
    try:
        return int(given) if given else None
    except ValueError:
        raise UsageError(
            f"{SEED_VARIABLE}='{given}' is not a seed. Set it to an int, such as 17, or leave it empty."
        ) from None

"""Random runs of whole jobs with event time, compared with a model in plain Python that receives the same commands.

A seed is a random program (`event_programs`), its input (`event_sources`), and attempts as in `durable_jobs`: bins
move, processes join, leave and are killed, and jobs resume from their stores. Some seeds have no store. The test logs
the epochs at which workers read events, the coordinator commanded watermarks, and the clock was read. Of each attempt,
the entries before the first epoch of the next attempt count. Then
1. The outputs and their epochs equal those of the model (`event_model`).
2. The watermark and the clock never fall. At the end of all lines the watermark is the greatest bound of everything
   read, in whatever order it was read. Then it becomes infinite, once, if the job has no store, if the user asked to
   close everything, or at a stop without a store. Otherwise windows and timers stay open for the next run, which reads
   what was appended to the files.
3. Every partition that is neither finished nor idle has delivered an event, and for each `event_time` that takes it,
   the greatest timestamp by then is ahead of the watermark by at least `out_of_order`. So an event is late only if it
   is more out of order than the program allows. Two things can replace the event, since the job need not know yet that
   the partition has begun: a lower bound from its source and, where files are read in order, the first event of an
   earlier file.
4. An idle partition holds the watermark back for a limited time only.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from megaflow.control.coordinator.reading import watermarks
from megaflow.control.messages import InputNames
from megaflow.job.files.splits import plan_splits
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.megaphone.base.routing import Watermark
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_storage import JobStorage
from tests.simulation import durable_jobs, event_programs, jobs, lost_processes
from tests.simulation.event_model import INFINITE, NEVER, micros_of
from tests.simulation.event_moves import few
from tests.simulation.event_programs import PER_PARTITION, SECOND
from tests.simulation.event_sources import (
    EventFeed,
    HalfFeed,
    Log,
    Run,
    draw_bound,
    draw_events,
    event_at,
    is_kept,
    parse,
    put_in_order,
    write_files,
)

ATTEMPTS = 3
INPUTS = ("left", "right")
EPSILON_SECONDS = 1e-9
REPORT_SECONDS = 0.2  # at most, from an event of a partition until the coordinator and then the workers know
PACE_SECONDS = 0.001  # slower polling would make idle partitions cost too many actions


class LoggedStorage(JobStorage):
    """Store that logs how each attempt begins."""

    def __init__(self, random: Random, log: Log) -> None:
        self._log = log
        self.closes = False  # whether everything closes at the end of the run that begins
        super().__init__(random)

    @property
    def begun(self) -> Any:
        return self._begun

    @begun.setter
    def begun(self, commit: Any) -> None:
        self._begun = commit
        if commit is not None:
            time = commit.time if commit.checkpoint else 0
            self._log.begin(time, commit.checkpoint if commit.ended or not commit.checkpoint else None, self.closes)


class EventJob(SimulatedJob):
    """Job whose partitions become idle soon."""

    def __init__(self, *given: Any, idle_seconds: float, closes: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self.spec = replace(self.spec, idle_timeout=idle_seconds, close_windows=closes)
        self._pace = max(self._pace, PACE_SECONDS)


class EventAttempts:
    """All attempts of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seen: Counter[str] = Counter()
        self._seed = seed
        self._random = random = Random(f"event time {seed}")
        self._program = event_programs.draw(random)
        self._log = Log(self._now)
        self._job: SimulatedJob | None = None
        self._seconds = 0.0  # duration of all attempts together
        self._idle_seconds = random.choice([0.03, 0.1, 0.3])
        count = random.choice([15, 40, 80])
        partitions = range(random.choice([1, 2, 2, 3, 4]))
        self._events = {each: draw_events(random, self._program, each, random.randint(1, count)) for each in partitions}
        more = Random(f"two times {seed}")
        event_programs.draw_other(more, self._program, len(partitions))
        event_programs.draw_stamped(Random(f"stamps {seed}"), self._program)
        self._feed: EventFeed | None = None
        self._input = JobInput()
        self._is_ordered = more.random() < 0.5
        if random.random() < 0.6:
            self._feed = EventFeed(random, self._program, self._events, self._log)
            for each in partitions if more.random() < 0.5 else ():
                self._feed.bounds[each] = draw_bound(more, self._program, each, self._events[each])
        else:
            self._input = self._files(folder)
        self._storage = LoggedStorage(random, self._log) if random.random() < 0.8 else None
        self._folder = folder
        self._dice = Random(f"ends {seed}")
        self._is_stopped = False  # before everything was read
        self._runs_left = 0 if self._feed is not None or self._is_ordered else self._dice.choice([0, 1, 2])

    def _files(self, folder: Path) -> JobInput:
        """Write the events as files, for two inputs if the program has two."""
        if self._is_ordered:
            put_in_order(self._program, self._events)
        splits = plan_splits(write_files(folder, self._program, self._events))
        names = INPUTS if self._program.is_apart else ("",)
        splits = [replace(each, input=names[int(each.path[-1]) % len(names)]) for each in splits]
        ordered = names if self._is_ordered else ()
        given = InputNames(lines=names if self._program.is_apart else (), ordered=ordered)
        return JobInput(splits=tuple(splits), names=given)

    def _now(self) -> float:
        return self._seconds + (0.0 if self._job is None else self._job.now())

    def _dataflow(self, flow: Any) -> Any:
        program, attempt = self._program, self._log.attempts[-1]
        flow.control.inspect_time(attempt.hear)
        if self._feed is None:
            streams = [flow.lines(name) for name in INPUTS] if program.is_apart else [flow.lines()]
            streams = [lines.map(partial(parse, program)) for lines in streams]
        elif program.is_apart:
            streams = [flow.read(HalfFeed(self._feed, odd), name) for odd, name in enumerate(INPUTS)]
        else:
            streams = [flow.read(self._feed, "feed")]
        kept = [each.filter(lambda event: is_kept(program, event)).inspect_time(attempt.see) for each in streams]
        return event_programs.build(program, *kept)

    def run(self) -> Counter[str]:
        """Run all attempts, the last of them undisturbed. Return counts of what happened."""
        if self._storage is None:
            self._log.begin(0, 0, closes=True)
            plan = self._draw_quiet()
            if self._feed is None and self._dice.random() < 0.3:
                plan.actions.append((self._dice.randint(50, 600), "stop"))
            self._live(plan, ATTEMPTS)
            return self.seen
        attempt = 0
        while True:
            self._storage.closes = self._dice.random() < 0.4
            attempt = self._live_to_the_end(attempt)
            if not self._runs_left:
                return self.seen
            self._runs_left -= 1
            self._write_more()

    def _live_to_the_end(self, first: int) -> int:
        """Run attempts until everything is read; return the number of the next one."""
        for attempt in range(first, first + self._random.randint(1, ATTEMPTS)):
            total = sum(map(len, self._events.values()))
            plan = (lost_processes if self._random.random() < 0.3 else durable_jobs).draw(self._random, total)
            if self._live(plan, attempt).outcome == "ended":
                return attempt + 1
        self._live(durable_jobs.Plan({"processes": self._random.randint(1, 3)}), attempt + 1)
        return attempt + 2

    def _write_more(self) -> None:
        """Append to the files and perhaps add one, mostly with events later than all before."""
        dice, program = self._dice, self._program
        later = dice.choice([0, 10, 40, 100]) * SECOND
        fresh = [] if program.is_apart or program.by_partition else [len(self._events)][: dice.randint(0, 1)]
        for each in [*self._events, *fresh]:
            old = self._events.setdefault(each, [])
            for key, (at, _) in draw_events(dice, program, each, dice.randint(0, 20)):
                micros = micros_of(at, program.unit) + later
                old.append(event_at(program, key, micros, each * PER_PARTITION + len(old)))
        if not self._events[max(self._events)]:
            del self._events[max(self._events)]
        self._input = self._files(self._folder)
        self.seen["grew"] += 1

    def _draw_quiet(self) -> durable_jobs.Plan:
        """Draw a plan without faults."""
        drawn = jobs.draw(self._random.randrange(1 << 30))
        options = {"processes": drawn.options["processes"], "workers": drawn.options["workers"], "rate": 200.0}
        clients = [
            (seconds, [each for each in scripts if each in durable_jobs.SCRIPTS]) for seconds, scripts in drawn.clients
        ]
        return durable_jobs.Plan(options, clients)

    def _live(self, plan: durable_jobs.Plan, attempt: int) -> SimulatedLaunch:
        plan.poison = False
        plan.clients = [client for client in plan.clients if lost_processes.ask not in client[1]]
        job = self._job = EventJob(
            20 * self._seed + attempt, self._dataflow, idle_seconds=self._idle_seconds, storage=self._storage,
            closes=self._storage is not None and self._storage.closes, job_input=self._input, **plan.options,
        )  # fmt: skip
        durable_jobs.prepare(plan, job, self._storage)
        with many_watermarks(self._seed), jobs.few_held(self._seed), jobs.blind(self._seed):
            launch = job.run()
        durable_jobs.check_joins(job)
        self._seconds += job.now() + 1.0
        self._job = None
        if self._storage is not None:
            self._storage.store.happenings.clear()
            self._storage.fill(None)
            self._storage.store.failing = 0.0
        if launch.error is not None and (plan.is_quiet or _is_of_program(launch.error)):
            reasons = [process.report for process in job.processes if process.report is not None]
            raise AssertionError(f"{launch.error}: {reasons}")
        self.seen[launch.outcome] += 1
        self.seen["joined"] += any("joined" in report for report in launch.reports)
        self.seen["restarted"] += any("restart 1 of" in report for report in launch.reports)
        self.seen["remembered"] += any(process.remembered for process in job.processes)
        self.seen["went on"] += any("resumes from" in report for report in launch.reports)
        is_whole = launch.outcome in ("ended", "over")
        if is_whole or (launch.outcome == "stopped" and self._storage is None):
            self._is_stopped = not is_whole
            self._check(self._storage.lines if self._storage is not None else launch.file.content)
        assert is_whole or not plan.is_quiet, launch.outcome
        return launch

    # The rules

    def _check(self, text: str) -> None:
        runs = [self._log.history(run) for run in self._log.runs]
        events = [each for some, _ in runs for each in some]
        commands = [each for _, some in runs for each in some]
        read = {event[1][1] for _, event in events}
        wanted = {event[1][1] for some in self._events.values() for event in some if is_kept(self._program, event)}
        assert read <= wanted and len(read) == len(events), f"{read - wanted} are not there"
        assert read == wanted or self._is_stopped, f"not read: {wanted - read}"
        outputs, left = event_programs.expected_of(self._program, runs)
        before, so_far = NEVER, list[Any]()
        for run, each, after in zip(self._log.runs, runs, left):
            so_far += [event for _, event in each[0]]
            self._check_commands(run, *each, before, so_far)
            before = after
        for time, command in runs[-1][1]:
            if isinstance(command, Watermark) and command.micros < INFINITE and len(runs) == 1:
                self._check_watermark(time, command.micros, events)
        found = Counter((line["time"], json.dumps(line["record"])) for line in map(json.loads, text.splitlines()))
        right = Counter(outputs)
        assert found == right, f"missing are {few(right - found)}, too many {few(found - right)}"
        self.seen["late"] += any('"late"' in record for _, record in right)
        self.seen["closed early"] += sum(isinstance(command, Watermark) for _, command in commands) > 2
        self.seen["stayed open"] += any(not run.closes for run in self._log.runs[:-1])
        self.seen["closed for good"] += any(run.closes for run in self._log.runs[:-1])
        self.seen["by the clock"] += any('"c' in record for _, record in right)
        self.seen["waited"] += self._feed is not None and self._feed.more > 0

    def _check_commands(self, run: Run, events: Any, commands: Any, before: int, so_far: list[Any]) -> None:
        """Check rule 2. `before`: the watermark that the previous run left; `so_far`: all events read in all runs."""
        for kind in {type(command) for _, command in commands}:
            told = [each.micros for _, each in commands if isinstance(each, kind) and each.micros < INFINITE]
            assert told == sorted(told), f"{kind.__name__} falls: {told}"
        ends = [time for time, each in commands if isinstance(each, Watermark) and each.micros == INFINITE]
        assert len(ends) == run.closes, f"the watermark is infinite at {ends}, and all is to close: {run.closes}"
        last = max((time for time, _ in events), default=-1)
        assert all(time > last for time in ends), f"the watermark is infinite at {ends}, and {last} is read"
        finite = [each.micros for _, each in commands if isinstance(each, Watermark) and each.micros < INFINITE]
        assert before == NEVER or not finite or finite[0] == before, f"a run begins with {finite[0]} after {before}"
        if not self._is_stopped:
            known = [
                self._program.micros(number, event) - taker.out_of_order
                for number, taker in enumerate(self._program.takers)
                for event in so_far
                if self._program.takes(number, event[1][1] // PER_PARTITION)
            ]
            wanted, found = max([before, *known]), max([before, *finite])
            told = self._feed is not None and bool(self._feed.bounds)
            assert found == wanted or (told and found > wanted), f"the last watermark is {found} instead of {wanted}"

    def _check_watermark(self, time: int, micros: int, events: Any) -> None:
        """Check rule 3: no counted partition may still deliver an event below the watermark, if it keeps its order."""
        program = self._program
        ahead = [
            program.micros(number, event) - taker.out_of_order
            for number, taker in enumerate(program.takers)
            for at, event in events
            if at <= time and program.takes(number, event[1][1] // PER_PARTITION)
        ]
        ahead += [told for partition in self._events for told in self._bounds(partition)]
        assert micros <= max(ahead), f"the watermark is {micros} at {time}, and all that has come is at {max(ahead)}"
        read = {event[1][1] for at, event in events if at < time}
        for partition in self._events:
            of = [event for _, event in events if event[1][1] // PER_PARTITION == partition]
            before = [event for event in of if event[1][1] in read]
            if len(before) == len(of) or not self._counts(partition, time, of):
                continue
            for number, taker in enumerate(program.takers):
                if program.takes(number, partition):
                    seen = [program.micros(number, event) for event in before + self._firsts(partition, read)]
                    told = self._bounds(partition)
                    reached = max([*(each - taker.out_of_order for each in seen), *told], default=None)
                    why = f"the watermark is {micros} at {time}, but {taker} may get {reached} of {partition} then"
                    assert reached is not None and reached >= micros, why
                    self.seen["by a bound" if told else "by an order"] += not before

    def _firsts(self, partition: int, read: set[int]) -> list[Any]:
        """Return the first events, if read by then, of files before this partition, if files are read in order."""
        if self._feed is not None or not self._is_ordered:
            return []
        apart = 2 if self._program.is_apart else 1
        before = range(partition % apart, partition, apart)
        kept = [[event for event in self._events[each] if is_kept(self._program, event)] for each in before]
        return [some[0] for some in kept if some and some[0][1][1] in read]

    def _bounds(self, partition: int) -> list[int]:
        """Return the source's bound of a partition as a list of at most one; in doubt about its unit, the lowest
        reading.
        """
        bound = None if self._feed is None else self._feed.bounds.get(partition)
        if bound is None:
            return []
        takers = [each for n, each in enumerate(self._program.takers) if self._program.takes(n, partition)]
        units = ["datetime"] if isinstance(bound, datetime) else [each.unit for each in takers]
        return [min(micros_of(bound, unit) for unit in units)]

    def _counts(self, partition: int, time: int, events: Any) -> bool:
        """Return whether a partition was known at an epoch and not idle.

        It was idle if, as far as the coordinator could know, nothing kept had arrived for long enough. Arrivals take up
        to `REPORT_SECONDS` to reach it.
        """
        feed, attempt = self._feed, self._log.attempt_at(time)
        if feed is None:
            return True
        if partition not in attempt.known or attempt.known[partition] >= time:
            return False
        if partition not in attempt.opened:
            return True
        heard = attempt.heard[time]
        came = sorted([attempt.opened[partition], *(feed.gave[event[1][1]] for event in events), inf])
        skipped = (feed.gave.get(event[1][1], 0.0) for event in self._events[partition])
        nothing = [*feed.idled[partition], *((seconds, seconds) for seconds in skipped)]
        for first, last in pairwise(came):
            if first <= heard <= last + REPORT_SECONDS:
                begun = min((since for since, _ in nothing if first <= since <= last), default=last)
                ended = max((until for since, until in nothing if first <= since <= last), default=first)
                if ended - begun >= self._idle_seconds - EPSILON_SECONDS:
                    return False
        return True


def _is_of_program(error: Exception) -> bool:
    return "AssertionError" in str(error)


@contextmanager
def many_watermarks(seed: int) -> Iterator[None]:
    """In most runs, raise watermarks often, and forget finished partitions soon."""
    period = Random(f"watermarks {seed}").choice([0.005, 0.02, watermarks.PERIOD_SECONDS])
    with patch.object(watermarks, "PERIOD_SECONDS", period), patch.object(watermarks, "KEPT_MIN", 0):
        yield


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-event-time-") as folder:
            return EventAttempts(seed, Path(folder)).run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error

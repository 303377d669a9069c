"""What each worker of a job runs: one dataflow, from the lines to the launcher, and the loop that steps it.

A worker that joins builds the same dataflow, shows that its code is the job's, and then waits until it may take part;
it reports when its stateful operators know their routing tables. A worker that leaves keeps stepping until no other
worker needs it.

One worker coordinates the job. When its process is to leave, a worker of another process takes over. The coordinator
gives the engine all that its controller leaves (`Resign`), gives away the control stream's handle, and from then on
keeps the requests that come. When the engine has handed over (`Succeeded`), the successor goes on with both and tells
the launcher and all workers where it listens (`Coordinates`). Only then are clients sent there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from megaflow.connect.source_protocol import Source
from megaflow.connect.write_operator import Writing
from megaflow.control.coordinator.controller import Controller
from megaflow.control.coordinator.driver import TOPIC, ControllerDriver
from megaflow.control.coordinator.events import Asked
from megaflow.control.coordinator.job_state import JobState
from megaflow.control.coordinator.lookups import places_of
from megaflow.control.latency import Lateness
from megaflow.control.launcher_messages import Coordinates, Ended, LinesTaken, ProcessJoined, ToldOnce
from megaflow.control.messages import TableWish
from megaflow.control.worker.agent import Agent
from megaflow.control.worker.port_roles import ControlDoor, LauncherDoor
from megaflow.durable.commits import Portion
from megaflow.durable.restored import Heir
from megaflow.job.profile.worker_profile import Profile
from megaflow.job.spec import ChildSpec, Founder, JoiningProcess
from megaflow.job.worker.discovery import Discovery, in_a_thread
from megaflow.job.worker.event_reports import event_time_of, unfinished
from megaflow.job.worker.fingerprint import CodeCheck
from megaflow.job.worker.flow import App, Flow, build_flow
from megaflow.job.worker.json_lines import state_text
from megaflow.job.worker.kept_state import ENGINE, KeptState
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.memory import Memory
from megaflow.job.worker.named_inputs import NamedInputs, SkippedLines, followers
from megaflow.job.worker.output import JobOutputs, NamedOutputs
from megaflow.job.worker.source_operator import LineSource, epoch_of
from megaflow.job.worker.staging import Staging
from megaflow.job.worker.watchdog import Watchdog
from megaflow.job.worker.worker_sinks import WorkerSinks
from megaflow.megaphone.control_stream import set_default
from megaflow.megaphone.journal import Durability
from megaflow.megaphone.moments import Showing
from megaflow.megaphone.remains import Remains
from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.rescale.messages import Event as MembershipEvent
from megaflow.timely.rescale.messages import Joined, Left, Succeeded

DRAIN_POLL_SECONDS = 0.05  # until it is checked again whether the launcher has come and taken everything


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of one process share."""

    spec: ChildSpec
    app: App
    launcher: LauncherDoor
    control: ControlDoor
    stagings: dict[int, Staging]  # worker -> its staged lines
    profiles: dict[int, Profile]  # worker -> its profile; empty if none is wanted
    watchdog: Watchdog
    joined: Callable[[Worker], None]  # told of each worker that has joined, once it has the table that it wished for
    keep: Callable[..., KeptState] = KeptState
    beside: Callable[..., Any] = in_a_thread
    memory: Memory | None = None  # what the process has of the job, if it was one of its before

    @property
    def address(self) -> str:
        """This process's port, as host:port."""
        return address_text(self.spec.address)


class WorkerProgram:
    """One worker's part of the job."""

    def __init__(self, worker: Worker, shared: Shared) -> None:
        spec = shared.spec
        self._worker = worker
        self._shared = shared
        self._probe = ProbeHandle()
        self._lateness = Lateness()
        self._control: InputHandle[Any] = InputHandle()  # written by the coordinator only, and elsewhere closed
        self._queue = LineQueue(shared.stagings[worker.index], spec.job.encoding_errors, spec.job.rate)
        self._queue.share_alike(worker.peers)
        self._queue.taken_of.update(dict.fromkeys((*spec.rows, *spec.lines), 0))
        worker.rescaling.subscribe(self._on_change)
        self._skipped, self._queue.replaced.tell = SkippedLines(self._tell_once), self._tell_once
        self._agent = Agent(
            worker, shared.address, lambda: self._queue.lines_taken, self._lateness, self._queue.waiting,
            self._queue.staging.missing, self._redirect, self._queue.taken_of, self._queue.portions.lags,
            self._skipped.counts, self._queue.replaced.counts, self._tell_once,
        )  # fmt: skip
        self._kept: KeptState | None = None  # if the job is durable
        self._source: LineSource | None = None  # if the dataflow reads
        self._sinks: WorkerSinks  # once the dataflow is built
        self._coordinator: ControllerDriver | None = None
        self._discovery: Discovery | None = None  # while it coordinates
        self._is_first = worker.index == min(shared.stagings)  # of its process
        self.has_dataflow = True  # what the worker's last step has returned; written by whoever steps it

    def run(self) -> None:
        """Step the dataflow to its end, and wait until the launcher has everything."""
        try:
            for seconds in self.life():
                self.has_dataflow = self._worker.step_or_park(seconds)
        finally:
            self._sinks.abandon()

    def life(self) -> Iterator[float | None]:
        """Do what is due between two steps of the worker; yield how long the next may wait, None for without limit."""
        if self._worker.index == self._worker.membership.coordinator:
            self._found()
        else:
            self._control.close()
            yield from self._introduce()
        if (joiner := self._worker.rescaling.joiner) is not None:
            joiner.begin()
            while self._worker.rescaling.joining:
                yield None
            self._take_part()
        profile = self._shared.profiles.get(self._worker.index)
        turn = self._turn if profile is None else profile.steering(self._turn)
        self.has_dataflow = True
        while self.has_dataflow:
            yield turn()
        turn()
        yield from self._sinks.end()
        launcher, worker = self._shared.launcher, self._worker
        late, lines = self._lateness, self._queue.lines_taken
        flow = None if late.began is None or late.ended is None else (late.began, late.ended)
        cut = None if self._kept is None else self._kept.finish()
        counts = self._skipped.counts, self._sinks.final, self._queue.replaced.counts, *unfinished(worker.stateful)
        launcher.send(Ended(worker.index, lines, self._output.records, late.log.windows(), flow, cut, *counts))
        yield from self._sinks.commit_last()
        while not launcher.is_drained:
            yield DRAIN_POLL_SECONDS

    def _introduce(self) -> Iterator[float | None]:
        """Before it takes part: show the coordinator what this process runs, and wish for a table."""
        part = self._shared.spec.part
        if self._is_first and not (isinstance(part, JoiningProcess) and part.other_code):
            self._code.show()
            while self._code.is_awaited:
                yield None
        if isinstance(part, JoiningProcess) and part.wishes:
            self._worker.rescaling.report(TableWish(part.server))

    def _take_part(self) -> None:
        """Now that the worker has joined: tell so, and where the coordinator is."""
        self._agent.joined(lambda: self._tell_joined(ready=True))
        self._tell_joined(ready=False)
        coordinator, processes = self._worker.membership.coordinator, self._worker.rescaling.processes.values()
        self._redirect(next(Coordinates(host, port) for host, port, ids in processes if coordinator in ids))

    def _tell_joined(self, ready: bool) -> None:
        """Say that it has joined: once it is ready, if it has wished for its table; else it may wait for that long."""
        part = self._shared.spec.part
        if ready is (isinstance(part, JoiningProcess) and part.wishes):
            self._shared.joined(self._worker)

    def end(self) -> list[tuple[Heir, Remains]]:
        """Write no more, as the worker has ended; return what is in memory of the operators. Blocks."""
        return [] if self._kept is None else self._kept.stop()

    def close(self) -> None:
        """Close the files that it has open, as the worker has ended: the process may go on with another part."""
        self._queue.close()
        if self._kept is not None:
            self._kept.close()

    def build(self) -> None:
        """Build the dataflow: once, before `run`."""
        spec, function = self._shared.spec, self._shared.app.function()
        with self._worker.dataflow(spec.name) as scope:
            graph = scope.ref.graph
            graph.where = ENGINE
            numbered = broadcast(scope.input_from(self._control).port, Lane.MAIL)
            graph.where = None
            graph.extension(Showing).show = state_text
            founds = isinstance(spec.part, Founder)
            if spec.durable is not None:
                part = spec.durable if founds else replace(spec.durable, commit=None)
                self._kept = self._shared.keep(self._worker, part, memory=self._shared.memory)
                self._kept.equip(graph.extension(Durability))
            set_default(numbered, spec.kept, *(() if self._kept is None else self._kept.event_time()))
            self._sinks = WorkerSinks(self._worker, spec.name, numbered, self._kept, self._shared.launcher, not founds)
            graph.extension(Writing).host, self._agent.sinks = self._sinks, self._sinks
            errors, replaced, now = spec.job.encoding_errors, self._queue.replaced, self._worker.now
            followed = followers(spec.followed, errors, replaced, self._tell_once, now)
            given = spec.rows, spec.lines, spec.items, self._skipped, followed, spec.unordered, spec.has_input
            inputs = NamedInputs(*given)
            read, read_source = partial(self._read, numbered, inputs), partial(self._read_source, numbered, inputs)
            forms = dict(spec.outputs)
            outputs = NamedOutputs([name for name in forms if name])
            flow = Flow(self._worker, scope, Stream(numbered), spec.job.args, read, inputs, outputs, read_source)
            stream = build_flow(function, flow, bool(spec.splits or spec.pushed or spec.spark_queries))
            self._event_time = event_time_of(graph, spec)
            self._queue.pushed.partitions = self._event_time.pushed
            if self._kept is not None:
                self._kept.check(graph)
            ports = {"": stream.port, **outputs.streams}
            self._output = JobOutputs(ports, self._shared.launcher, forms, self._kept is not None)
            Stream(self._sinks.behind(self._output.sent)).probe_with(self._probe)
        self._code = CodeCheck(self._worker, self._shared.app.fingerprint(spec.job.args))

    def _read(self, numbered: Port[Numbered], inputs: NamedInputs) -> Stream[Any]:
        return Stream(self._reading(numbered, inputs).lines)

    def _read_source(
        self, numbered: Port[Numbered], inputs: NamedInputs, name: str, source: Source[Any]
    ) -> Stream[Any]:
        self._queue.portions.sources[name] = source
        self._queue.taken_of[name] = 0
        return Stream(self._reading(numbered, inputs).add_source(name))

    def _reading(self, numbered: Port[Numbered], inputs: NamedInputs) -> LineSource:
        """Return what reads all inputs."""
        if self._source is not None:
            return self._source
        launcher, spec = self._shared.launcher, self._shared.spec
        self._queue.staging.unpack = inputs.unpack
        self._queue.streams.formats, self._queue.streams.piped = inputs.formats, spec.piped
        source = self._source = LineSource(
            numbered, self._worker, launcher, self._queue, self._lateness, self._probe, self._worker.rescaling.report,
            None if self._kept is None else self._kept.keep_lines, inputs.are_several, spec.job.idle_timeout,
        )  # fmt: skip
        if self._kept is not None:
            self._queue.staging.restore(self._kept.restaged())
        if self._worker.index == 0:  # the launcher pushes to the first process, whose poller is this thread
            if spec.pushed:
                self._queue.expect_pushed(from_the_first=isinstance(spec.part, Founder))
            launcher.serve(self._queue, source.activate)
        return source

    def _tell_once(self, about: str, text: str) -> None:
        self._shared.launcher.send(ToldOnce(self._worker.index, about, text))

    def _on_change(self, event: MembershipEvent) -> None:
        """Read an equal part of the rate; have the launcher connect to processes that have joined."""
        if isinstance(event, Succeeded):
            assert isinstance(event.luggage, JobState)
            self._succeed(event.luggage)
        if isinstance(event, Joined | Left):
            self._queue.share_alike(len(event.membership.ids))
        if isinstance(event, Joined) and self._coordinator is not None:
            self._shared.launcher.send(ProcessJoined(*event.process))

    # The coordinator's part

    def _found(self) -> None:
        """Coordinate a job that begins, perhaps from a checkpoint."""
        spec, processes = self._shared.spec, self._worker.rescaling.processes.values()
        durable = None if self._kept is None else self._kept.durable(True, self._code.code)
        if durable is not None and durable.committed is not None:
            self._control.advance_to(durable.epoch + 1)
        sources = self._queue.portions.sources
        if self._kept is not None:
            self._kept.check_sources(sources)
        self._discover(sources, () if durable is None else (*durable.portions, *durable.finished))
        self._coordinate(
            sources=tuple(sources),
            splits=spec.splits,
            pushed=spec.pushed,
            queries=spec.spark_queries,
            ports=[(each, host, port) for host, port, ids in processes for each in ids],
            processes=[ids for _, _, ids in processes],
            durable=durable,
        )

    def _succeed(self, state: JobState) -> None:
        """Coordinate a job that another worker has coordinated."""
        self._control.receive(state.epoch)
        durable = None if self._kept is None else self._kept.durable(False, self._code.code)
        self._discover(state.lines.partitions.asked, state.lines.partitions.known)
        self._coordinate(state=state, durable=durable)
        word = Coordinates(*self._shared.spec.address)
        self._shared.launcher.send(word)
        for worker in self._worker.membership.ids:
            if worker != self._worker.index:
                self._worker.post(worker, TOPIC, word)

    def _discover(self, names: Iterable[str], known: Iterable[Portion]) -> None:
        """Ask these sources for partitions from now on."""
        asked = {name: self._queue.portions.sources[name] for name in names}
        operators, beside = self._event_time.operators, partial(self._shared.beside, done=self._worker.allocator.wake)
        self._discovery = Discovery(asked, [(each.input, each.partition) for each in known], beside, operators)

    def _coordinate(self, **more: Any) -> None:
        spec, worker, launcher = self._shared.spec, self._worker, self._shared.launcher
        operators = {view.name: view.bins for view in worker.stateful}
        if more["durable"] is not None:
            sources = tuple(sorted(self._queue.portions.sources))
            more["durable"] = replace(more["durable"], sinks=self._sinks.names, sources=sources)
        controller = Controller(
            spec.name, worker.membership, operators, pins=worker.rescaling.pins,
            join_timeout_seconds=spec.job.join_timeout_seconds, stage_of=worker.rescaling.coordination.stage_of,
            places_of=partial(places_of, worker.stateful), rated=spec.job.rate is not None,
            event_time=self._event_time, **more
        )  # fmt: skip
        self._coordinator = ControllerDriver(
            worker, controller, self._control, spec.name, self._probe, launcher.send, spec.address, self._handed_over
        )
        launcher.coordinate(self._coordinator.put)
        self._shared.control.serve(self._coordinator.put)

    def _handed_over(self, asked: Sequence[Asked]) -> None:
        """Coordinate no more; what was asked here is asked of the successor."""
        self._coordinator = self._discovery = None
        self._shared.control.keep(asked)

    def _redirect(self, word: Coordinates) -> None:
        """Send clients to the coordinator that says that it serves."""
        if self._is_first:  # whose thread the doors belong to
            self._shared.control.redirect(word.host, word.port)

    def _turn(self) -> float | None:
        """Do the work between two steps; return how long the next may wait, None for without limit."""
        now = self._worker.now()
        open_times = self._probe.frontier.elements
        open_epoch = epoch_of(open_times[0]) if open_times else None
        self._agent.turn(now, open_epoch)
        self._sinks.pass_on_reports()
        credit = self._queue.take_credit()
        if credit:
            self._shared.launcher.send(LinesTaken(credit))
        due = None
        if self._coordinator is not None and self._discovery is not None:
            for found in self._discovery.turn(now, self._coordinator.is_known):
                self._coordinator.put(found)
            wait = self._discovery.due_in(now)
            due = self._coordinator.turn(now, open_epoch)  # 0 if it hands over
            due = due if wait is None else min(due, wait)
        return 0.0 if self._agent.is_trying else due

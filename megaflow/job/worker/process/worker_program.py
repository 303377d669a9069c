"""The program that each worker of a job runs: one dataflow, from the lines to the launcher, and the loop that steps it.

A joiner builds the same dataflow, shows that its code is the job's, and waits until it may take part. It reports when
its stateful operators know their routing tables. A leaver steps until no other worker needs it.

One worker coordinates the job. Before its process leaves, a worker of another process takes over. The coordinator gives
the engine the state of its controller (`Resign`) and the control stream's handle, and keeps requests from then on. When
the engine has handed over (`Succeeded`), the successor continues with both. It sends its address to the launcher and to
all workers (`Coordinates`). Only then do workers redirect clients to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from megaflow.control.checkpoint_messages import LeftOut
from megaflow.control.coordinator.base.events import Asked
from megaflow.control.coordinator.base.job_state import FeedState, JobState
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.coordinator.controller.driver import TOPIC, ControllerDriver
from megaflow.control.coordinator.controller.lookups import places_of
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.latency import LatencyMeter
from megaflow.control.launcher_messages import Coordinates, Ended, LinesTaken, ToldOnce
from megaflow.control.messages import TableWish
from megaflow.durable.commits import SourcePartition
from megaflow.durable.incarnation import check_same_store
from megaflow.durable.restored import StateDescriptor
from megaflow.errors import PeerLost
from megaflow.job.files.file_descriptors import FileDescriptors
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.log_records import MARK, LogPlace, places, settle
from megaflow.job.profile.worker_profile import Profile
from megaflow.job.spec import ChildSpec, Founder, JoiningProcess
from megaflow.job.worker import snapshots
from megaflow.job.worker.control.agent import Agent, resident_bytes, state_bytes
from megaflow.job.worker.control.connection_handlers import ControlDoor, LauncherDoor, membership_news
from megaflow.job.worker.process.discovery import Discovery, in_a_thread
from megaflow.job.worker.process.fingerprint import CodeCheck
from megaflow.job.worker.process.flow import Flow, build_flow, wire
from megaflow.job.worker.process.inputs_check import InputsCheck
from megaflow.job.worker.process.named_inputs import NamedInputs, SkippedLines, followers
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.watchdog import Watchdog
from megaflow.job.worker.process.worker_sinks import WorkerSinks
from megaflow.job.worker.reading.event_reports import event_time_of, unfinished, windowed
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.job.worker.reading.source_operator import LineSource
from megaflow.job.worker.reading.staging import Staging
from megaflow.job.worker.writing.output import JobOutputs, NamedOutputs
from megaflow.megaphone import snapshot
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.timely.communication.address import address_text
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.progress.antichain import first_epoch
from megaflow.timely.rescale.messages import Event as MembershipEvent
from megaflow.timely.rescale.messages import Joined, Left, Succeeded

DRAIN_POLL_SECONDS = 0.05  # between two checks whether the launcher has connected and taken everything


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that the workers of one process share."""

    spec: ChildSpec
    app: App
    launcher: LauncherDoor
    control: ControlDoor
    stagings: dict[int, Staging]  # worker -> its staged lines
    profiles: dict[int, Profile]  # worker -> its profile; empty if none is wanted
    watchdog: Watchdog
    joined: Callable[[Worker], None]  # receives each worker that has joined, once it has the table that it asked for
    keep: Callable[..., snapshots.StateBackend] | None = None  # replaces the class
    beside: Callable[..., Any] = in_a_thread
    resident: Callable[[], int | None] = resident_bytes  # memory of the process
    memory: snapshots.LocalRecovery | None = None  # of the previous incarnation, if the process took part in it
    descriptors: FileDescriptors = field(default_factory=FileDescriptors)  # of followed files


class WorkerProgram:
    """One worker's part of the job."""

    def __init__(self, worker: Worker, shared: Shared) -> None:
        spec, inputs = shared.spec, shared.spec.inputs
        self._worker = worker
        self._shared = shared
        self._probe = ProbeHandle()
        self._lateness = LatencyMeter()
        self._control: InputHandle[Any] = InputHandle()  # only the coordinator writes it; closed elsewhere
        self._queue = LineQueue(shared.stagings[worker.index], spec.job.encoding_errors, spec.job.rate)
        self._queue.share_alike(worker.peers)
        self._queue.taken_of.update(dict.fromkeys((*inputs.rows, *inputs.lines), 0))
        worker.rescaling.subscribe(self._on_change)
        errors, replaced = spec.job.encoding_errors, self._queue.replaced
        replaced.tell, self._skipped = self._tell_once, SkippedLines(self._tell_once)
        followed = followers(
            inputs.followed, errors, replaced, self._tell_once, worker, self._skipped.count, shared.descriptors
        )
        self._inputs = NamedInputs(
            inputs.rows, inputs.lines, inputs.items, self._skipped, followed, inputs.unordered, inputs.is_given
        )
        self._queue.staging.unpack = self._inputs.unpack
        self._inputs.plain = self._queue.streams.plain = RecordFormat(bytes_max=spec.job.line_size_max)
        self._queue.streams.formats, self._queue.streams.piped = self._inputs.formats, spec.piped
        self._agent = Agent(
            worker, address_text(spec.address), lambda: self._queue.lines_taken, self._lateness, self._queue.waiting,
            self._queue.staging.missing, self._redirect, self._queue.taken_of, self._queue.open_partitions.lags,
            self._skipped.counts, self._queue.replaced.counts, self._skipped.others, self._tell_once, self._blocked,
            shared.resident,
        )  # fmt: skip
        self._kept: snapshots.StateBackend | None = None  # None: the job is not durable
        self._source: LineSource | None = None  # None: the dataflow reads nothing
        self._sinks: WorkerSinks  # set when the dataflow is built
        self._coordinator: ControllerDriver | None = None
        self._discovery: Discovery | None = None  # set while this worker coordinates and asks sources
        self._is_first = worker.index == min(shared.stagings)  # of its process
        self.has_dataflow = True  # the result of the worker's last step; written by the caller that steps it

    def run(self) -> None:
        """Step the dataflow to its end, and wait until the launcher has everything."""
        try:
            for seconds in self.turns():
                self.has_dataflow = self._worker.step_or_park(seconds)
        finally:
            self._sinks.abandon()

    def turns(self) -> Iterator[float | None]:
        """Do the work between two steps of the worker; yield how long the next step may wait, None for no limit."""
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
        may_outlive = isinstance(self._shared.spec.part, JoiningProcess)  # the processes that would notice an end
        while self.has_dataflow:
            yield turn()
            if may_outlive and self._shared.launcher.gone:
                raise PeerLost("The job's launcher has ended")
        turn()
        yield from self._inputs_check.end()
        for seconds in self._sinks.end():
            yield seconds
            self._pass_on_reports()
        launcher, worker = self._shared.launcher, self._worker
        late, lines = self._lateness, self._queue.lines_taken
        flow = None if late.began is None or late.ended is None else (late.began, late.ended)
        cut = None if self._kept is None else self._kept.keeper.finish()
        keys, size = sum(view.keys() for view in worker.stateful), sum(map(state_bytes, worker.stateful))
        launcher.send(Ended(
            worker.index, lines, self._output.records, late.log.windows(), flow, cut, self._sinks.final,
            *unfinished(worker.stateful), self._left_out() + windowed(worker.stateful),
            () if (lines_to_read := self._lines_to_read()) is None else lines_to_read.partitions.unopened, keys, size,
        ))  # fmt: skip
        yield from self._sinks.commit_last()
        while not launcher.is_drained:
            yield DRAIN_POLL_SECONDS

    def _introduce(self) -> Iterator[float | None]:
        """Before taking part: check code, inputs and sinks, and ask for a routing table.

        A joiner for which a check fails ends. The job has then given it nothing.
        """
        part = self._shared.spec.part
        if self._is_first and not (isinstance(part, JoiningProcess) and part.other_code):
            self._code.show()
            while self._code.is_awaited:
                yield None
        if self._is_first and may_be_elsewhere(self._shared.spec):
            self._inputs_check.begin()
        if isinstance(part, JoiningProcess):
            while self._inputs_check.under_way:
                yield self._inputs_check.turn()
            self._sinks.open()
            if part.wishes:
                self._worker.rescaling.report(TableWish(part.server))

    def _take_part(self) -> None:
        """After the worker has joined: report that, and redirect clients to the coordinator.

        A worker that asked for its routing table reports when it has the table.
        """
        part, tell = self._shared.spec.part, partial(self._shared.joined, self._worker)
        if isinstance(part, JoiningProcess) and part.wishes:
            self._agent.joined(tell)
        else:
            self._agent.joined(lambda: None)
            tell()
        coordinator, processes = self._worker.membership.coordinator, self._worker.rescaling.processes.values()
        self._redirect(next(Coordinates(host, port) for host, port, ids in processes if coordinator in ids))

    def end(self) -> list[tuple[StateDescriptor, snapshot.RetainedBins]]:
        """Stop writing, as the worker has ended; return its operators' states in memory. Blocks."""
        return [] if self._kept is None else self._kept.stop()

    def close(self) -> None:
        """Close the worker's files, as it has ended; the process may continue with another part."""
        self._queue.close()
        if self._kept is not None:
            self._kept.close()

    def build(self) -> None:
        """Build the dataflow, once, before `run`."""
        spec, launcher = self._shared.spec, self._shared.launcher
        attempt = 0 if spec.durable is None else spec.durable.incarnation
        places.here = LogPlace(spec.name, self._worker.index, attempt, lambda: first_epoch(self._probe.frontier))
        function, founds, forms = self._shared.app.function(), isinstance(spec.part, Founder), dict(spec.outputs)
        settle(spec.job.log_level, spec.job.log_format, MARK)
        with self._worker.dataflow(spec.name) as scope:
            if spec.durable is not None:
                part = spec.durable if founds else replace(spec.durable, commit=None)
                keep = self._shared.keep or snapshots.StateBackend
                self._kept = keep(self._worker, part, memory=self._shared.memory)
                self._kept.count = self._skipped.count
                if self._is_first and spec.job.on is not None:
                    check_same_store(self._kept.store, part, joins=not founds)
            outputs = NamedOutputs([name for name in forms if name])
            flow, self._sinks = wire(
                self._worker, scope, self._control, spec.job.args, self._reading, self._inputs, outputs, self._kept,
                spec.kept, launcher, not founds,
            )  # fmt: skip
            self._agent.sinks = self._sinks
            stream = build_flow(function, flow, bool(spec.splits or spec.pushed or spec.spark_queries))
            graph = scope.ref.graph
            self._event_time = event_time_of(graph, spec)
            self._queue.pushed.partitions = self._event_time.pushed
            if self._kept is not None:
                self._kept.check(graph)
            ports = {"": stream.port, **outputs.streams}
            self._output = JobOutputs(ports, launcher, forms, self._kept is not None)
            self._agent.outputs = self._output.by_name
            Stream(self._sinks.behind(self._output.sent)).probe_with(self._probe)
        settle(spec.job.log_level, spec.job.log_format, MARK, is_loaded=True)
        self._code = CodeCheck(self._worker, self._shared.app.fingerprint(spec.job.args))
        sources = self._queue.open_partitions.sources
        self._inputs_check = InputsCheck(self._worker, sources, self._beside, self._lines_to_read, self._sinks, attempt)

    def _reading(self, flow: Flow) -> LineSource:
        """Return the operator that reads all inputs; build it at the first call."""
        if self._source is not None:
            return self._source
        spec, queue = self._shared.spec, self._queue
        source = self._source = LineSource(
            flow.control.port, self._worker, self._shared.launcher, queue, self._lateness, self._probe,
            self._worker.rescaling.report, self._serve, None if self._kept is None else self._kept.keeper.write,
            self._inputs.are_several, self._left_out, spec.job.idle_timeout,
        )  # fmt: skip
        if self._kept is not None:
            self._queue.staging.restore(self._kept.restaged())
        if self._worker.index == 0:  # the launcher pushes to the first process, whose poller is this thread
            if spec.pushed:
                queue.expect_pushed(from_the_first=isinstance(spec.part, Founder))
            self._serve()
        return source

    def _blocked(self, now: float) -> dict[str, float]:
        """Return the seconds for which the source was held back."""
        return {} if self._source is None else self._source.held_back.seconds(now)

    def _left_out(self) -> LeftOut:
        """Return a copy of the counts of what was left out while lines were read."""
        others = {kind: dict(counts) for kind, counts in self._skipped.others.items()}
        return LeftOut(dict(self._skipped.counts), dict(self._queue.replaced.counts), others)

    def _serve(self) -> None:
        """Read the launcher's lines from now on; the calling thread polls."""
        assert self._source is not None, "its commands make this worker read them"
        self._shared.launcher.serve(self._queue, self._source.activate)

    def _tell_once(self, about: str, text: str) -> None:
        self._shared.launcher.send(ToldOnce(self._worker.index, about, text))

    def _on_change(self, event: MembershipEvent) -> None:
        """Take over if this worker succeeds the coordinator. After a join or leave, share the rate anew.

        The coordinator also reports the join or leave to the launcher.
        """
        if isinstance(event, Succeeded):
            assert isinstance(event.luggage, JobState)
            self._succeed(event.luggage)
        if isinstance(event, Joined | Left):
            self._queue.share_alike(len(event.membership.ids))
            if self._coordinator is not None:
                self._shared.launcher.send(membership_news(event, self._worker.index))

    def _pass_on_reports(self) -> None:
        """Pass on the outcomes of writes to the store: of outboxes to the sinks, all others to the coordinator."""
        for report in () if self._kept is None else self._kept.keeper.take_reports():
            if isinstance(report, snapshots.OutboxWritten):
                self._sinks.written(report)
            else:
                self._worker.rescaling.report(report)

    # The coordinator's part

    def _found(self) -> None:
        """Coordinate a job that starts, perhaps from a checkpoint."""
        spec, processes = self._shared.spec, self._worker.rescaling.processes.values()
        durable = None if self._kept is None else self._kept.durable(True, self._code.code)
        if durable is not None and durable.committed is not None:
            self._control.advance_to(durable.epoch + 1)
        sources = self._queue.open_partitions.sources
        if self._kept is not None:
            self._kept.check_sources(sources)
            self._kept.tell_ended(sources, self._tell_once)
        self._discover(sources, () if durable is None else (*durable.partitions, *durable.finished), is_first=True)
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
        """Coordinate a job after another worker has coordinated it."""
        self._control.receive(state.epoch)
        durable = None if self._kept is None else self._kept.durable(False, self._code.code)
        self._discover(state.partitions.to_ask, state.partitions.known.values())
        self._coordinate(state.feed, state=state, durable=durable)
        word = Coordinates(*self._shared.spec.address)
        self._shared.launcher.send(word)
        for worker in self._worker.membership.ids:
            if worker != self._worker.index:
                self._worker.post(worker, TOPIC, word)

    def _discover(self, names: Iterable[str], known: Iterable[SourcePartition], is_first: bool = False) -> None:
        """Start asking these sources for partitions, if there are any."""
        if asked := {name: self._queue.open_partitions.sources[name] for name in names}:
            found = [(each.input, each.partition) for each in known]
            self._discovery = Discovery(asked, found, self._beside, self._event_time.operators, is_first)

    def _beside(self, task: Callable[[], Any]) -> Future[Any]:
        """Run a function in a thread, and wake the worker at its end."""
        result: Future[Any] = self._shared.beside(task, done=self._worker.allocator.wake)
        return result

    def _coordinate(self, feed: FeedState | None = None, **more: Any) -> None:
        spec, worker, launcher = self._shared.spec, self._worker, self._shared.launcher
        operators = {view.name: view.bins for view in worker.stateful}
        if more["durable"] is not None:
            sources = tuple(sorted(self._queue.open_partitions.sources))
            more["durable"] = replace(more["durable"], sinks=self._sinks.names, sources=sources)
        controller = Controller(
            spec.name, worker.membership, operators, pins=worker.rescaling.pins,
            join_timeout_seconds=spec.job.join_timeout_seconds, stage_of=worker.rescaling.coordination.stage_of,
            places_of=partial(places_of, worker.stateful), rated=spec.job.rate is not None,
            event_time=self._event_time, describe=self._queue.open_partitions.describe, **more
        )  # fmt: skip
        self._coordinator = ControllerDriver(
            worker, controller, self._control, spec.name, self._probe, launcher.send, spec.address, self._handed_over,
            0 if spec.durable is None else spec.durable.incarnation, feed,
        )  # fmt: skip
        launcher.launched = self._coordinator.put
        self._shared.control.serve(self._coordinator.put)

    def _lines_to_read(self) -> LinesToRead | None:
        return None if self._coordinator is None else self._coordinator.controller.lines

    def _handed_over(self, asked: Sequence[Asked]) -> None:
        """Stop coordinating; keep unanswered requests until their clients can be redirected to the successor."""
        self._coordinator = self._discovery = None
        self._shared.control.keep(asked)

    def _redirect(self, word: Coordinates) -> None:
        """Redirect clients to the new coordinator."""
        if self._is_first:  # the control door belongs to its thread
            self._shared.control.redirect(word.host, word.port)

    def _turn(self) -> float | None:
        """Do the work between two steps; return how long the next step may wait, None for no limit."""
        now = self._worker.now()
        open_epoch = first_epoch(self._probe.frontier)
        self._agent.turn(now, open_epoch)
        self._pass_on_reports()
        if credit := self._queue.take_credit():
            self._shared.launcher.send(LinesTaken(credit))
        due = wait = None
        if self._inputs_check.has_work:
            self._inputs_check.turn()
        if (coordinator := self._coordinator) is not None:
            if self._discovery is not None:
                for found in self._discovery.turn(now, coordinator.is_known, coordinator.is_unread):
                    coordinator.put(found)
                wait = self._discovery.due_in(now)
            due = coordinator.turn(now, open_epoch)  # 0 if it hands over
            due = due if wait is None else min(due, wait)
        return 0.0 if self._agent.trials else due


def may_be_elsewhere(spec: ChildSpec) -> bool:
    """Tell whether a process may run on another machine than the launcher: on an executor, or joining by hand."""
    return spec.job.on is not None or (isinstance(spec.part, JoiningProcess) and spec.report_fd is None)

"""One worker's part in membership changes: it follows the coordinator's word, and says when it has.

Why a join is safe
 1. *Numbers.* From a marker on a member sends the joiner every batch; the server's snapshot and ranges give it the
    rest; numbers tell doubles and gaps (`intake`). So the joiner's counts are the sum of a prefix of each
    worker's batches, like everybody's: no frontier it shows is ahead of the truth.
 2. *Nothing before the commit.* Until then nobody sends the joiner a record and it sends no batch: if it dies,
    nothing has happened. What it sends afterwards waits at a member that has not applied the commit yet.
 3. *Capabilities.* It holds none by itself. A member mints one for it beside one that it holds itself, and the batch
    that did is a gate: nobody folds the joiner's batches before that one (`progcaster`). Otherwise the joiner's
    release could cancel the minter's own count at a third worker.
 4. *Founders.* Initial counts and tables come from the membership that founded the dataflow. While a change is under
    way a member asks the coordinator which one that is; otherwise it is the last one committed: a commit
    waits for the word of every member about what it has built.
 5. *One at a time.* A change is done when everybody has applied it and folded every minting batch, so the next
    snapshot holds them.
Why a leave is safe: see `leaver`; nobody lets go of a leaver before it has read the end of each of its lanes.
Why a hand-over is safe: see `handover`; a member only speaks to another coordinator, after a fence.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from megaflow.errors import JoinDenied
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.bootstrap_server import Server
from megaflow.timely.rescale.followed_change import FollowedChange
from megaflow.timely.rescale.founders import Founders
from megaflow.timely.rescale.grants import Gates, mint
from megaflow.timely.rescale.handover import Coordination
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.joiner import Joiner
from megaflow.timely.rescale.leaver import RECORD_LANES, Leaver, objections, pins
from megaflow.timely.rescale.messages import TOPIC, Event, Process
from megaflow.timely.rescale.sequencer import Sequencer


class Member:
    """Membership, as one worker sees it, and what it does to change it. One writer: the worker's thread."""

    def __init__(
        self,
        host: Host,
        membership: Membership,
        processes: dict[int, Process] | None = None,
        admission: messages.Admission | None = None,
    ) -> None:
        """`processes` are the founders'; None: one process, so nothing ever changes. `admission`: it joins."""
        self.membership = membership
        self.audience: tuple[WorkerId, ...] = membership.ids  # who is told progress
        self.retiring = False
        self.left = False
        self.may_end = processes is None and admission is None
        self.processes = dict(processes or {})  # number -> where it is and who works there
        self.joiner = Joiner(admission, host) if admission is not None else None
        self._host = host
        self._founders = Founders(((0, membership),) if admission is None else admission.foundings)
        if admission is not None:
            self.processes = dict(admission.processes)
        coordinates = admission is None and host.index == membership.coordinator
        places = self.processes or {0: ("", 0, membership.ids)}
        first = Sequencer(membership, places, self._founders.table) if coordinates else None
        self.coordination = Coordination(host, first, self._emit)
        self._callbacks: list[Callable[[Event], None]] = []
        self._change = FollowedChange()
        if admission is not None:
            self._change.expect(worker for worker in admission.ids if worker != host.index)
        self._gates = Gates(host)
        self._settled = True
        self._leaver: Leaver | None = None
        self._answers: dict[WorkerId, list[Callable[[str | None], None]]] = {}  # who is told of its leaves, in order

    # What a program may know and ask

    @property
    def joining(self) -> bool:
        """Whether this worker is on its way in and may not take part yet."""
        return self.joiner is not None and not self.joiner.admitted

    @property
    def attentive(self) -> bool:
        """Whether `takes` must see what arrives."""
        return self._change.is_expecting or self.joining

    @property
    def sequencer(self) -> Sequencer | None:
        """The queue of changes, where it is; None on all other workers."""
        return self.coordination.sequencer

    def subscribe(self, callback: Callable[[Event], None]) -> None:
        """Call `callback(event)` for each change that is done or was given up, and each hand-over."""
        self._callbacks.append(callback)

    def ask_leave(self, worker: WorkerId, answer: Callable[[str | None], None]) -> None:
        """Have the process of this worker leave; `answer(None)` when it has, `answer(reason)` if it stays."""
        self._answers.setdefault(worker, []).append(answer)
        self._post(self.membership.coordinator, messages.LeaveAsk(worker, self._host.index))

    def pins(self, ids: tuple[WorkerId, ...]) -> tuple[str, ...]:
        """Why these may not leave before the dataflows end that are running now, bins or no bins."""
        return pins(self._host, ids)

    def report(self, body: Any) -> None:
        """Tell the program that coordinates, wherever it is: of each worker it hears all, once, in order."""
        self._tell(messages.Report(body))

    def hand_over(self, luggage: object | None = None, reports: Iterable[tuple[WorkerId, Any]] = ()) -> None:
        """On the coordinator: have the lowest worker outside this process coordinate instead; returns at once.

        `luggage`, a value that can travel, goes along to that worker's program, which gets it with `Succeeded` and is
        to `supervise` then; with it go `reports` that this program has taken but not worked off. All hear `HandedOver`.
        Raises CommandRefused, and nothing has changed, if this is not the coordinator or the only process, or a change
        is under way.
        """
        self.coordination.hand_over(luggage, tuple(reports))

    def ask_end(self) -> None:
        """Ask for the word that there will be no more changes: then `may_end`."""
        if not self.may_end:
            self._post(self.membership.coordinator, messages.EndAsk())

    def founders(self, dataflow: int) -> Membership | None:
        """Who founds a dataflow that is built now; None: the coordinator was asked; look again when mail has come."""
        if self._founders.must_ask(dataflow):
            self._tell(messages.FoundersAsk(dataflow))
        return self._founders.of(dataflow)

    def started(self, graph: Graph) -> None:
        """Take note of a dataflow that was built and runs from now on."""
        if self.joiner is not None:
            self.joiner.restored(graph)
        if self._change.server is not None:
            self._change.server.record(graph)
        self._gates.started(graph)

    # What arrives

    def takes(self, envelope: Envelope) -> bool:
        """Keep what must wait: from workers that are no members here yet, and progress that cannot be folded yet."""
        return self._change.keep(envelope) or (self.joiner is not None and self.joiner.take(envelope))

    def hear_lane(self, lane: Lane, source: WorkerId, message: Any) -> None:
        """Take in what keeps its place on a lane."""
        match message:
            case messages.Marker() if self.joiner is not None:
                self.joiner.hear(source, message)
            case messages.CapabilityGate(_, minted):
                self._gates.hear(source, minted)
            case messages.NoMoreRecords() if self._leaver is not None:
                self._leaver.no_more_records(source, lane)
            case messages.LaneEnd(change):
                if self._change.has_departed(source, lane) and change == self._change.number:
                    self._tell(messages.Departed(change, source))

    def hear(self, source: WorkerId, message: Any) -> None:
        """Take in one message of the mail."""
        match message:
            case messages.JoinAsk(via=None):
                self._post(self.membership.coordinator, replace(message, via=self._host.index))
            case messages.LinkLost() if self.joining:
                raise JoinDenied("this process did not join: the cluster has ended, or has canceled the join")
            case messages.LinkLost() if source == self._host.index != self.membership.coordinator:
                self._tell(message)
            case messages.Snapshot() | messages.RangeAnswer() | messages.Grants():
                if self.joiner is not None and message.change == self.joiner.admission.change:
                    self.joiner.hear(source, message)
            case messages.Answer(key, answer):
                if self._host.door is not None:
                    self._host.door.answer(key, answer)
            case messages.Prepare():
                self._prepare(message)
            case messages.RangeAsk():
                if self._change.server is not None and message.change == self._change.number:
                    self._change.server.asked.append((source, message))
            case messages.Commit():
                self._commit(message)
            case messages.Abort():
                self._abort(source, message)
            case messages.MintAsk():
                self._post(source, mint(self._host, message))
            case messages.Finished():
                self._finish(message)
            case messages.FoundersAnswer(dataflow, founders):
                self._founders.fix(dataflow, founders)
            case messages.MayLeave():
                self._consider(message)
            case messages.Retire():
                self._retire(message)
            case messages.LeaveAnswer(worker, reason):
                self._answers[worker].pop(0)(reason)
            case messages.MayEnd():
                self.may_end = True
            case messages.Handover(membership):
                self.membership = membership
                self._post(source, messages.Fence())
                self._emit(messages.HandedOver(membership))
            case _:
                self.coordination.hear(source, message)

    def turn(self) -> None:
        """Do what has become due; to be called in each step."""
        if not self._change.number:
            return
        if self._change.server is not None:
            self._change.server.turn()
        if self.joiner is not None:
            self.joiner.turn()
        if self._leaver is not None:
            self._leaver.turn()
        if not self._settled:
            self._settle()

    def _post(self, worker: WorkerId, message: object) -> None:
        self._host.post(worker, TOPIC, message)

    def _tell(self, message: object) -> None:
        self._post(self.membership.coordinator, message)

    # A join

    def _prepare(self, message: messages.Prepare) -> None:
        self._enter(message.change, message.ids, is_join=True)
        host = self._host
        self._change.expect(message.ids)
        self.audience = tuple(sorted({*self.membership.ids, *message.ids}))
        running = {number: graph.progress.caster.batches_sent for number, graph in host.graphs.items()}
        marker = messages.Marker(message.change, host.built(), host.unbuilt(), running)
        host.allocator.send_all(message.ids, Channel.membership(Lane.PROGRESS), marker)
        if message.server == host.index:
            server = Server(message.change, host)
            self._change.serve(server)
            for worker in message.ids:
                self._post(worker, server.snapshot)
        self._tell(messages.Prepared(message.change, host.built()))

    def _settle(self) -> None:
        """Say so when every batch that minted for a new member is folded."""
        if not self.joining and self._gates.are_passed():
            self._settled = True
            self._tell(messages.Settled(self._change.number))

    # A leave

    def _consider(self, message: messages.MayLeave) -> None:
        self._enter(message.change, message.ids, is_join=False)
        self._tell(messages.Objections(message.change, self._host.built(), objections(self._host, message.ids)))

    def _retire(self, message: messages.Retire) -> None:
        host = self._host
        self.retiring = True
        others = tuple(worker for worker in self.membership.ids if worker != host.index)
        self._leaver = Leaver(message.change, others, host)
        for graph in host.graphs.values():
            graph.close_inputs()
        self._tell(messages.Retiring(message.change))

    def _begin_leave(self, ids: tuple[WorkerId, ...], before: tuple[WorkerId, ...]) -> None:
        """Send no records to the leaving workers any more, and tell them so."""
        host = self._host
        leavers = [worker for worker in ids if worker != host.index]
        self.audience = before
        self._change.await_lane_ends(leavers)
        for graph in host.graphs.values():
            graph.gathering.depart()
        for lane in RECORD_LANES:
            host.allocator.send_all(leavers, Channel.membership(lane), messages.NoMoreRecords(self._change.number))
        if self._leaver is not None:
            self._leaver.draining = True

    # Common steps

    def _enter(self, change: int, ids: tuple[WorkerId, ...], is_join: bool) -> None:
        self._change.begin(change, ids, is_join)
        if not self.joining:
            self._founders.open()

    def _commit(self, message: messages.Commit) -> None:
        host = self._host
        before = self.membership.ids
        ids = tuple(sorted(self.membership.workers ^ message.membership.workers))
        if self.joiner is not None and self.joiner.admission.change == message.change:
            self._enter(message.change, ids, is_join=True)
        self._change.committed = True
        self.membership = message.membership
        self.processes = dict(message.processes)
        self._founders.commit(message.founds, message.membership)
        if not self._change.is_join:
            self._begin_leave(ids, before)
            return
        self._change.stop_serving()
        self.audience = message.membership.ids
        self._settled = False
        host.allocator.promote(ids)
        self._gates.begin(set(ids) - {host.index})
        for view in [view for graph in host.graphs.values() for view in graph.views]:
            view.follow()  # before anything of the newcomers' comes
        for envelopes in self._change.admit():
            host.redeliver(envelopes)

    def _abort(self, source: WorkerId, message: messages.Abort) -> None:
        if self.joining and self.joiner is not None and message.change == self.joiner.admission.change:
            self.joiner.hear(source, message)
        ids = message.joining or (self._change.ids if self._change.number == message.change else ())
        self._change.stop_serving()
        self._change.expect(())
        self.audience = self.membership.ids
        self._host.allocator.forget(message.joining)
        self._leaver = None
        self.retiring = False
        self._founders.close()
        self._change.end()
        self._emit(messages.Aborted(message.change, ids, message.reason))

    def _finish(self, message: messages.Finished) -> None:
        ids = self._change.ids
        self._change.end()
        if self._change.is_join:
            process = next(process for process in self.processes.values() if process[2] == ids)
            last = self.sequencer.last if self.sequencer is not None else None
            account = (last.seconds, last.bytes) if last is not None else ({}, 0)
            self._emit(messages.Joined(message.change, ids, self.membership, process, *account))
            return
        self.audience = self.membership.ids
        if self._host.index in ids:
            self.left = True
            self.may_end = True
        else:
            self._host.allocator.forget(ids)
        self._emit(messages.Left(message.change, ids, self.membership))

    def _check(self) -> None:
        self.coordination._check()
        self._change._check()
        assert self._leaver is None or self.retiring
        assert self.joining or set(self.membership.ids) <= set(self.audience), "progress goes to all members"

    def _emit(self, event: Event) -> None:
        for callback in self._callbacks:
            callback(event)

"""One worker's part in membership changes: it carries out the coordinator's messages and reports when it is done.

Why a join is safe
 1. *Numbers.* After its marker a member sends every batch to the joiner. The server's snapshot and ranges supply the
    earlier ones, and the numbers of the batches reveal duplicates and gaps (`catch_up`). So the joiner's counts, like
    every worker's, are the sum of a prefix of each worker's batches: no frontier that it shows is ahead of the truth.
 2. *Nothing before the commit.* Until the commit, no worker sends the joiner a record, and the joiner sends no batch.
    If it dies, nothing has happened. What the joiner sends after the commit waits at each member until that member has
    applied the commit.
 3. *Capabilities.* The joiner starts with none. A member mints one for it beside one that the member holds itself. The
    minting batch is a gate: no worker folds the joiner's batches before that one (`progcaster`). Otherwise the
    joiner's release could cancel the minter's own count at a third worker.
 4. *Founders.* Initial counts and tables come from the membership that founded the dataflow. While a change is under
    way, a member asks the coordinator which membership that is. At other times its own table of commits says so
    (`founders`). The table is right, because a commit waits until every member has reported what it has built.
 5. *One at a time.* A change is done when every worker has applied it and has folded every minting batch. So the next
    snapshot contains those batches.
Why a leave is safe: see `leaver`. No worker forgets a leaving worker before it has read the end of each of its lanes.
Why a hand-over is safe: see `handover`. A member addresses another coordinator only after it has sent a fence.
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
from megaflow.timely.rescale.messages import TOPIC, Admission, Event, Foundings, Process
from megaflow.timely.rescale.sequencer import Sequencer


class Member:
    """One worker's view of the membership, and its part in changing it. One writer: the worker's thread."""

    def __init__(
        self, host: Host, membership: Membership, processes: dict[int, Process] | None, admission: Admission | None
    ) -> None:
        """Start as a founder, or as a joiner if there is an `admission`.

        `processes` are the founding processes. None means that there is one process, so the membership never changes.
        """
        self.membership = membership
        self.audience: tuple[WorkerId, ...] = membership.ids  # the workers that receive progress
        self.retiring = False
        self.left = False
        self.may_end = processes is None and admission is None
        self.processes = dict(processes or {})  # number -> its address and its workers
        self.joiner: Joiner | None = None
        self._host = host
        self._change = FollowedChange()
        foundings: Foundings = ((0, membership),)
        if admission is not None:
            self.processes, foundings = dict(admission.processes), admission.foundings
            self.joiner = Joiner(admission, host)
            self._change.expect(worker for worker in admission.ids if worker != host.index)
        self._founders = Founders(foundings)
        coordinates = admission is None and host.index == membership.coordinator
        places = self.processes or {0: ("", 0, membership.ids)}
        first = Sequencer(membership, places, foundings) if coordinates else None
        self.coordination = Coordination(host, first, self._emit)
        self._callbacks: list[Callable[[Event], None]] = []
        self._gates = Gates(host)
        self._settled = True
        self._leaver: Leaver | None = None
        self._answers: dict[WorkerId, list[Callable[[str | None], None]]] = {}  # leaving worker -> callbacks, in order

    # The program's interface

    @property
    def joining(self) -> bool:
        """Whether this worker is joining and may not take part yet."""
        return self.joiner is not None and not self.joiner.admitted

    @property
    def attentive(self) -> bool:
        """Whether every incoming envelope must be offered to `takes`."""
        return bool(self._change.early) or self.joining

    def subscribe(self, callback: Callable[[Event], None]) -> None:
        """Call `callback(event)` for each change that is done or aborted, and for each hand-over."""
        self._callbacks.append(callback)

    def ask_leave(self, worker: WorkerId, answer: Callable[[str | None], None]) -> None:
        """Ask for this worker's process to leave; call `answer(None)` once it has, `answer(reason)` if it stays."""
        self._answers.setdefault(worker, []).append(answer)
        self._post(self.membership.coordinator, messages.LeaveAsk(worker, self._host.index))

    def pins(self, ids: tuple[WorkerId, ...]) -> tuple[str, ...]:
        """Return the reasons why these workers may not leave before the running dataflows end, with or without bins."""
        return pins(self._host, ids)

    def report(self, body: Any) -> None:
        """Send `body` to the coordinator's program, wherever it runs; each worker's reports arrive once, in order."""
        self._tell(messages.Report(body))

    def hand_over(self, luggage: object | None = None, reports: Iterable[tuple[WorkerId, Any]] = ()) -> None:
        """Hand the coordinator's role to the lowest-numbered worker outside this process. Return at once.

        Call it on the coordinator. The successor's program receives `luggage`, a value that can travel, with
        `Succeeded`, and must then call `supervise`. It also receives `reports`, which this program has taken but not
        processed. Every member's program receives `HandedOver`. Raises CommandRefused, with nothing changed, if this
        worker is not the coordinator, if there is no other process, or if a change is under way.
        """
        self.coordination.hand_over(luggage, tuple(reports))

    def ask_end(self) -> None:
        """Ask the coordinator to confirm that no more changes will come; `may_end` is set when it does."""
        if not self.may_end:
            self._post(self.membership.coordinator, messages.EndAsk())

    def founders(self, dataflow: int) -> Membership | None:
        """Return the founders of a dataflow that is built now.

        None means that the coordinator must say, and has been asked: call again when mail has arrived.
        """
        if self._founders.must_ask(dataflow):
            self._tell(messages.FoundersAsk(dataflow))
        return self._founders.of(dataflow)

    def started(self, graph: Graph) -> None:
        """Note that a dataflow has been built and is running."""
        if self.joiner is not None:
            self.joiner.restored(graph)
        if self._change.server is not None:
            self._change.server.record(graph)
        self._gates.started(graph)

    # Incoming messages

    def takes(self, envelope: Envelope) -> bool:
        """Keep an envelope that must wait; return whether it was kept.

        Messages from workers that are not members here yet must wait, and so must progress that cannot be folded yet.
        """
        return self._change.keep(envelope) or (self.joiner is not None and self.joiner.take(envelope))

    def hear_lane(self, lane: Lane, source: WorkerId, message: Any) -> None:
        """Process a membership message whose position on its lane matters."""
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
        """Process one mail message."""
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
        """Do all work that is due. The worker calls this in each step."""
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
            self._change.server = Server(message.change, host)
            for worker in message.ids:
                self._post(worker, self._change.server.snapshot)
        self._tell(messages.Prepared(message.change, host.built()))

    def _settle(self) -> None:
        """Report to the coordinator once every batch that minted for a new member is folded."""
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
        """Stop sending records to the leaving workers, and send `NoMoreRecords` on each record lane."""
        host = self._host
        leavers = [worker for worker in ids if worker != host.index]
        self.audience = before
        self._change.await_lane_ends(leavers)
        for graph in host.graphs.values():
            graph.batch_coalescer.depart()
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
            view.follow()  # before any record or batch of the newcomers is delivered
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
            sequencer = self.coordination.sequencer
            last = sequencer.last if sequencer is not None else None
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

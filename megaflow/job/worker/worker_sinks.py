"""All sinks that one worker writes to: what they are lent, and what they tell the coordinator and the launcher.

1. A worker's tokens for a checkpoint are told at once, when all of its sinks have prepared: the coordinator waits for
   one report of each worker, with tokens or without.
2. What an earlier run had prepared and is to commit is dealt out to the workers that found the job: all tokens of one
   earlier worker to the same one, in their order; those of a sink that is not parallel to the first.
3. The launcher is told when a worker has committed what a checkpoint has of it: a stop and the end wait for that.
4. On a worker that has joined, the operators write nothing until the coordinator has said which checkpoint was under
   way then, if one was: they have not heard its command, and it waits for them.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from megaflow.connect.sink import OutboxSink, Sink
from megaflow.connect.write_operator import Outlet, WriteOperator
from megaflow.control.checkpoint_messages import (
    Committed,
    CutFailed,
    SinksCommitted,
    TokensAt,
    TokensLeft,
    UnderWayAtJoin,
)
from megaflow.control.messages import Withdraw
from megaflow.control.reports import SinkStatus
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.durable.commits import SinkToken
from megaflow.errors import BuildError
from megaflow.job.worker.cut_packer import OutboxCut, OutboxWritten
from megaflow.job.worker.kept_state import KeptState
from megaflow.job.worker.open_outbox import OpenOutbox
from megaflow.job.worker.open_sink import OpenSink
from megaflow.megaphone.routing import Checkpoint, Numbered
from megaflow.program import Worker
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.movement import concatenate

POLL_SECONDS: Final = 0.05  # until it is looked again whether what is waited for has come

_log = logging.getLogger("megaflow.child")


class WorkerSinks:
    """The sinks of one worker. One writer: its thread."""

    def __init__(
        self,
        worker: Worker,
        job: str,
        commands: Port[Numbered],
        kept: KeptState | None = None,
        launcher: LauncherDoor | None = None,
        has_joined: bool = False,
    ) -> None:
        """`kept` is the worker's share of what is durable; None: nothing is. Without a launcher nothing is written."""
        self.worker = worker.index
        self.job = job
        self.commands = commands
        self.store = None if kept is None else kept.store
        self.folder = "" if kept is None else kept.folder
        self.now = worker.now
        self._kept = kept
        self._launcher = launcher
        self._operators: list[WriteOperator] = []
        self._sinks: dict[str, OpenSink] = {}
        self._founders = worker.membership.ids
        self._begun: tuple[int, Sequence[SinkToken]] = (0, ()) if kept is None else kept.tokens()
        self._is_told = not has_joined or kept is None
        self._report = worker.rescaling.report
        self.final: TokensAt | CutFailed | None = None  # what the checkpoint at the end has of this worker's

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called, sorted."""
        return tuple(sorted(self._sinks))

    def statuses(self) -> tuple[SinkStatus, ...]:
        """Say how far they are."""
        sinks = [self._sinks[name] for name in self.names]
        return tuple(SinkStatus(each.name, each.committed, each.rows + each.held) for each in sinks)

    # While the dataflow is built

    def place(self, sink: Sink[Any], name: str, where: str) -> Outlet:
        """Return what a sink is on this worker. Raises BuildError if another has this name."""
        if name in self._sinks:
            raise BuildError(
                f"write ({where}): Another sink has the name {name!r}, by which its rows are found again after a "
                "crash. Give each sink its own name."
            )
        kind = OpenOutbox if isinstance(sink, OutboxSink) else OpenSink
        self._sinks[name] = kind(sink, name, where, self)
        return self._sinks[name]

    def has_built(self, operator: WriteOperator) -> None:
        """Take note of a sink's operator."""
        operator.is_told = self._is_told
        self._operators.append(operator)

    def behind(self, port: Port[Any]) -> Port[Any]:
        """Return a stream without records whose time passes when the port's has, and all is written before it."""
        ports = [port, *(operator.sent for operator in self._operators)]
        return concatenate(port.scope, ports) if self._operators else port

    def is_leave(self, command: object) -> bool:
        """Tell whether a command has this worker's source close."""
        return isinstance(command, Withdraw) and self.worker in command.workers

    # What sinks ask for

    def restored(self, sink: Sink[Any], name: str) -> tuple[int, Sequence[SinkToken]]:
        """Return which tokens this worker is to commit before all else, and of which checkpoint they are."""
        number, tokens = self._begun
        before = sorted({token.worker for token in tokens})
        ranks = {worker: rank if sink.parallel else 0 for rank, worker in enumerate(before)}
        mine = [
            token for token in tokens
            if token.sink == name and self._founders[ranks[token.worker] % len(self._founders)] == self.worker
        ]  # fmt: skip
        return number, mine

    def prepared(self, number: int) -> None:
        """Report a checkpoint's tokens once all sinks have prepared."""
        if any(sink.done != number for sink in self._sinks.values()):
            return
        report = TokensAt(number, tuple(token for sink in self._sinks.values() for token in sink.tokens))
        if any(sink.has_final for sink in self._sinks.values()):
            self.final = report
        else:
            self._report(report)

    def failed(self, number: int, reason: str) -> None:
        """Report that a checkpoint cannot be."""
        report = CutFailed(number, reason)
        if any(sink.has_final for sink in self._sinks.values()):
            self.final = report
        else:
            self._report(report)

    def left(self, tokens: Sequence[SinkToken]) -> None:
        """Report which tokens others are to commit."""
        self._report(TokensLeft(tuple(tokens)))

    def keep(self, cut: OutboxCut) -> None:
        """Have what an outbox has written to the store."""
        assert self._kept is not None, "there is a store"
        self._kept.keep_outbox(cut)

    # What others tell

    def hear(self, word: Committed | UnderWayAtJoin) -> None:
        """Do what follows from a word of the coordinator's."""
        if isinstance(word, Committed):
            self._commit(word)
        elif not self._is_told:
            self._is_told = True
            number = word.checkpoint
            for operator in self._operators:
                operator.tell(word.epoch, None if number is None else Checkpoint(number, word.since))

    def _commit(self, word: Committed, at_end: bool = False) -> None:
        """Commit what a checkpoint has: what a worker that has left had prepared, and then this worker's own.

        At the end the launcher is told in any case: it waits for all.
        """
        number, adopted = word.checkpoint, False
        for name, sink in self._sinks.items():
            tokens = [token for token in word.tokens if token.sink == name]
            sink.commit(number, tokens)
            adopted = adopted or bool(tokens)
        own = [sink.has_committed(number) for sink in self._sinks.values()]
        if (adopted or any(own) or at_end) and self._launcher is not None:
            self._launcher.send(SinksCommitted(self.worker, number))

    def pass_on_reports(self) -> None:
        """Tell the coordinator what has come of what was written to the store, and sinks what of their outboxes."""
        for report in self._kept.take_reports() if self._kept is not None else ():
            if isinstance(report, OutboxWritten):
                self._sinks[report.cut.sink].written(report.cut, report.segments, report.failure)
            else:
                self._report(report)

    # The end

    def end(self) -> Iterator[float]:
        """Prepare, or flush, what is left, as the dataflow has ended; yield how long to wait, until that is done."""
        for sink in self._sinks.values():
            sink.end()
        while not all(sink.is_settled for sink in self._sinks.values()):
            yield POLL_SECONDS
            self.pass_on_reports()

    def commit_last(self) -> Iterator[float]:
        """Commit what the checkpoint at the end has, once it is durable, and close all; yield as `end` does."""
        launcher = self._launcher
        assert launcher is not None, "only a job's sinks are written to"
        if self.final is not None:
            while launcher.last is None and not launcher.gone:
                yield POLL_SECONDS
            if (word := launcher.last) is not None:
                adopted = word.tokens if word.worker == self.worker else ()
                self._commit(Committed(word.checkpoint, tokens=adopted), at_end=True)
        for sink in self._sinks.values():
            sink.close()

    def abandon(self) -> None:
        """Close those that are open, as something has failed, which is what will be told."""
        for sink in self._sinks.values():
            try:
                sink.close()
            except Exception as error:
                _log.debug("closed after a failure: %s", error)

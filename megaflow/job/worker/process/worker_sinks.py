"""All sinks of one worker: the services that it offers them, and their reports to the coordinator and the launcher.

1. A worker reports its tokens for a checkpoint in one message, after all of its sinks have prepared. The coordinator
   waits for one report from each worker, with or without tokens.
2. The tokens of the checkpoint from which the job resumes are distributed to the founding workers, which commit them
   before all others. An earlier run may have committed some of them already. All tokens of one earlier worker go to the
   same worker, in their order. The first worker gets those of a sink that is not parallel.
3. A worker reports to the launcher when it has committed its part of a checkpoint: a stop and the end wait for that.
4. The coordinator tells a joiner which checkpoint was under way when it joined, if any. Until then the joiner's
   operators write nothing: they did not receive that checkpoint's command, but the checkpoint waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import Any, Final

from megaflow.connect import writing as sinks
from megaflow.connect.sink_host import Outlet
from megaflow.control.checkpoint_messages import (
    Committed,
    CutFailed,
    SinksCommitted,
    TokensAt,
    TokensLeft,
    UnderWayAtJoin,
)
from megaflow.control.launcher_messages import ToldOnce
from megaflow.control.messages import Withdraw
from megaflow.control.reports import SinkStatus
from megaflow.durable.commits import SinkToken
from megaflow.durable.incarnation import NOT_COMPARED, Standing
from megaflow.errors import BuildError, StoreUnfit, UsageError
from megaflow.job.worker import snapshots, writing
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.megaphone.base.routing import Checkpoint, Numbered
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.movement import concatenate

POLL_SECONDS: Final = 0.05  # between two checks while something is awaited

_log = logging.getLogger("megaflow.job.worker")


@dataclass(eq=False, repr=False)
class WorkerSinks:
    """The sinks of one worker. One writer: its thread."""

    _worker: Worker
    job: str
    commands: Port[Numbered]
    _kept: snapshots.StateBackend | None  # the worker's share of the durable state; None: there is none
    _launcher: LauncherDoor | None  # None: nothing is written
    has_joined: bool

    def __post_init__(self) -> None:
        worker, kept = self._worker, self._kept
        self.worker = worker.index
        self.store = None if kept is None else kept.store
        self.folder = "" if kept is None else kept.folder
        self.now = worker.now
        self._operators: list[sinks.WriteOperator] = []
        self._sinks: dict[str, writing.OpenSink] = {}
        self._founders = worker.membership.ids
        self._begun: tuple[int, Sequence[SinkToken]] = (0, ()) if kept is None else kept.tokens()
        self._is_told = not self.has_joined or kept is None
        self.lineage = "" if kept is None else kept.standing.lineage
        self.standing = NOT_COMPARED if kept is None else kept.standing
        self._report = worker.rescaling.report
        self.final: TokensAt | CutFailed | None = None  # this worker's part of the checkpoint at the end

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sinks, sorted."""
        return tuple(sorted(self._sinks))

    def statuses(self) -> tuple[SinkStatus, ...]:
        """Return the progress of each sink."""
        sinks = [self._sinks[name] for name in self.names]
        return tuple(SinkStatus(each.name, each.committed, each.rows + each.held, each.total) for each in sinks)

    def check(self, name: str, record: Any) -> None:
        """Ask a sink about a record. Raises UsageError if there is no such sink, and the errors of its `check`."""
        if name not in self._sinks:
            raise UsageError(f"The program has no sink {name!r}. It has: {', '.join(self.names) or 'none'}.")
        self._sinks[name].check([record])

    # While the dataflow is built

    def place(self, sink: sinks.Sink[Any], name: str, where: str) -> Outlet:
        """Return the outlet of a sink on this worker. Raises BuildError if another sink has its name."""
        if name in self._sinks:
            raise BuildError(
                f"write ({where}): Another sink has the name {name!r}, by which its rows are found again after a "
                "crash. Give each sink its own name."
            )
        kind = writing.OpenOutbox if isinstance(sink, sinks.OutboxSink) else writing.OpenSink
        self._sinks[name] = kind(sink, name, where, self)
        return self._sinks[name]

    def has_built(self, operator: sinks.WriteOperator) -> None:
        """Add the operator of a sink."""
        operator.is_told = self._is_told
        self._operators.append(operator)

    def behind(self, port: Port[Any]) -> Port[Any]:
        """Return an empty stream. It passes a time once `port` has passed it and the sinks have written up to it."""
        ports = [port, *(operator.sent for operator in self._operators)]
        return concatenate(port.scope, ports) if self._operators else port

    def is_leave(self, command: object) -> bool:
        """Tell whether a command closes this worker's source."""
        return isinstance(command, Withdraw) and self.worker in command.workers

    def open(self) -> None:
        """Open all sinks, before this worker takes part. Raises their errors."""
        for operator in self._operators:
            operator.begin()

    @property
    def are_open(self) -> bool:
        """Whether all sinks are open."""
        return all(each.is_open for each in self._sinks.values())

    def probes(self) -> tuple[tuple[str, bytes], ...]:
        """Write a probe to the place of each open sink that has probes; return the names and tokens."""
        tokens = {name: each.probe() for name, each in self._sinks.items()}
        return tuple((name, token) for name, token in tokens.items() if token is not None)

    def seen(self, probes: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
        """Return those of the probes of another worker that are at the places of this worker's open sinks."""
        return tuple((name, token) for name, token in probes if self._sees(name, token))

    def _sees(self, name: str, token: bytes) -> bool:
        try:
            return name in self._sinks and self._sinks[name].sees(token)
        except Exception as error:  # a process that wants to join must not end the job
            _log.warning("the sink %r of a process that joins is not found here: %s", name, error)
            return False

    def forget(self, probes: Iterable[tuple[str, bytes]]) -> None:
        """Remove these probes. A probe that stays does no harm."""
        for name, token in probes:
            try:
                self._sinks[name].forget(token)
            except Exception as error:
                _log.warning("the probe of sink %r stays where it is: %s", name, error)

    def about(self, name: str) -> str:
        """Return how to name a sink in a message."""
        return str(self._sinks[name])

    def compared(self, standing: Standing) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Open and close the sinks that can tell what they have delivered.

        Return those that have delivered more than their store knows, as pairs of their name and what to tell the user;
        and the names of those whose deliveries are there. Raises StoreUnfit, which names all sinks with which the job
        must not go on, and the sinks' errors.
        """
        newer, found, unfit = list[tuple[str, str]](), list[str](), dict[str, str]()
        try:
            for each in self._sinks.values() if standing.lineage else ():
                try:
                    mismatch = each.compared(standing)
                    newer += [(each.name, mismatch.text)] if mismatch is not None and mismatch.is_newer else []
                    found += [each.name] if each.can_tell and (mismatch is None or mismatch.is_newer) else []
                except StoreUnfit as error:
                    unfit[each.name] = str(error)
        finally:
            self.abandon()
        if unfit:
            options = " ".join(f"--accept-rows {quote(name)}" for name in (*standing.accepted, *unfit))
            all_of_them = [f"To go on with all these rows as they are, give {options}."] if len(unfit) > 1 else []
            raise StoreUnfit("\n".join([*unfit.values(), *all_of_them]))
        return tuple(newer), tuple(found)

    # Calls of the sinks

    def restored(self, sink: sinks.Sink[Any], name: str) -> tuple[int, Sequence[SinkToken]]:
        """Return the tokens that this worker must commit before all others, and the number of their checkpoint."""
        number, tokens = self._begun
        before = sorted({token.worker for token in tokens})
        ranks = {worker: rank if sink.parallel else 0 for rank, worker in enumerate(before)}
        mine = [
            token for token in tokens
            if token.sink == name and self._founders[ranks[token.worker] % len(self._founders)] == self.worker
        ]  # fmt: skip
        return number, mine

    def tell(self, about: str, text: str) -> None:
        """Show the user a text about a subject, once."""
        if self._launcher is not None:
            self._launcher.send(ToldOnce(self.worker, about, text))

    def prepared(self, number: int) -> None:
        """Report a checkpoint's tokens once all sinks have prepared."""
        if any(sink.done != number for sink in self._sinks.values()):
            return
        self._finish(TokensAt(number, tuple(token for sink in self._sinks.values() for token in sink.tokens)))

    def failed(self, number: int, reason: str) -> None:
        """Report that a checkpoint cannot be completed."""
        self._finish(CutFailed(number, reason))

    def _finish(self, report: TokensAt | CutFailed) -> None:
        """Report this worker's part of a checkpoint; keep it if that is the one at the end, for the launcher."""
        if any(sink.final is not None for sink in self._sinks.values()):
            self.final = report
        else:
            self._report(report)

    def left(self, tokens: Sequence[SinkToken]) -> None:
        """Report the tokens that other workers must commit."""
        self._report(TokensLeft(tuple(tokens)))

    def keep(self, cut: snapshots.OutboxCut) -> None:
        """Write a cut of an outbox to the store."""
        assert self._kept is not None, "there is a store"
        self._kept.keeper.write(cut)

    # Messages from others

    def hear(self, word: Committed | UnderWayAtJoin) -> None:
        """Handle a message of the coordinator."""
        if isinstance(word, Committed):
            self._commit(word)
        elif not self._is_told:
            self._is_told = True
            number = word.checkpoint
            for operator in self._operators:
                operator.tell(word.epoch, None if number is None else Checkpoint(number, word.since, last=word.last))

    def _commit(self, word: Committed, at_end: bool = False) -> None:
        """Commit the tokens of a checkpoint: first those of workers that left, then this worker's own.

        At the end this worker reports in any case, because the launcher waits for all workers.
        """
        number, adopted = word.checkpoint, False
        for name, sink in self._sinks.items():
            tokens = [token for token in word.tokens if token.sink == name]
            sink.commit(number, tokens)
            adopted = adopted or bool(tokens)
        own = [sink.has_committed(number) for sink in self._sinks.values()]
        if (adopted or any(own) or at_end) and self._launcher is not None:
            self._launcher.send(SinksCommitted(self.worker, number))

    def written(self, outcome: snapshots.OutboxWritten) -> None:
        """Give its sink the outcome of writing a cut of an outbox."""
        self._sinks[outcome.cut.sink].written(outcome)

    # The end

    def end(self) -> Iterator[float]:
        """Prepare or flush the last records, as the dataflow has ended; yield how long to wait, until that is done."""
        for sink in self._sinks.values():
            sink.end()
        while not all(sink.is_settled for sink in self._sinks.values()):
            yield POLL_SECONDS

    def commit_last(self) -> Iterator[float]:
        """Commit the checkpoint at the end once it is durable, and close all sinks; yield as `end` does."""
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
        """Close the open sinks after a failure, and only log their errors: the failure itself is reported."""
        for sink in self._sinks.values():
            try:
                sink.close()
            except Exception as error:
                _log.debug("closed after a failure: %s", error)

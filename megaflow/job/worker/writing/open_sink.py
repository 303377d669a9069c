"""A sink on one worker: its written, prepared and committed records, and the tokens that stand for them.

The worker's thread makes all calls here. With a store:
 1. The worker reports a prepared token to the coordinator with the next cut, and again with each later cut, until one
    of these checkpoints is committed. So the tokens of an abandoned checkpoint are in the next one.
 2. The worker commits a token once it learns that its checkpoint is committed, from a message or from a command that
    follows the checkpoint, and in any case before it prepares again. So when a checkpoint is committed, all tokens of
    the checkpoint before have been committed.
 3. A leaving worker prepares records as soon as they are written, and reports all its tokens. Other workers commit
    them, except those that turn out to be committed already.
Without a store, the worker prepares and commits written records once a second, and when it ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from megaflow.connect.sink import Sink, SinkPlace
from megaflow.connect.sink_host import Outlet
from megaflow.durable.commits import DIGEST, LastDelivery, SinkToken, token_name
from megaflow.durable.incarnation import Standing
from megaflow.durable.lineage import Delivered, Mismatch, before, compare, last_deliveries, others
from megaflow.durable.segments import SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import ProgramError
from megaflow.job.worker import snapshots
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.error_notes import noting

FLUSH_SECONDS: Final = 1.0  # between two flushes, without a store
TOKEN_BYTES_MAX: Final = 64 << 10  # keeps commits small


class SinkKeeper(Protocol):
    """Protocol of the services that a sink needs from its worker."""

    worker: int  # its id
    job: str  # the job's name
    lineage: str  # of the store; "": there is no store
    standing: Standing  # of the store with which the job began
    has_joined: bool  # whether it has joined a running job
    store: Store | None  # None: the job is not durable
    folder: str  # of the store; "": there is none

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def restored(self, sink: Sink[Any], name: str) -> tuple[int, Sequence[SinkToken]]:
        """Return the tokens that must be committed here before all others, and the number of their checkpoint."""

    def keep(self, cut: snapshots.OutboxCut) -> None:
        """Write a cut of an outbox to the store."""

    def prepared(self, number: int) -> None:
        """Note that a sink has prepared everything for a checkpoint."""

    def failed(self, number: int, reason: str) -> None:
        """Note that a sink could not prepare for a checkpoint."""

    def tell(self, about: str, text: str) -> None:
        """Show the user a text about a subject, once."""

    def left(self, tokens: Sequence[SinkToken]) -> None:
        """Report the tokens that other workers must commit, as this worker leaves."""


class OpenSink(Outlet):
    """A sink on one worker that prepares its records itself."""

    _rows_max: float = float("inf")  # without a store, so many records may wait in memory

    def __init__(self, sink: Sink[Any], name: str, where: str, keeper: SinkKeeper) -> None:
        self.name = name
        self.tokens: list[SinkToken] = []  # prepared here and not known to be committed, in order
        self.done = 0  # the last checkpoint for which everything was prepared
        self.committed: int | None = None  # the last checkpoint, or flush, with records committed here
        self.total = 0  # records written
        self.rows = 0  # records written since the last cut or flush
        self.held = 0  # records that are prepared but not known to be committed
        self._sink = copy.copy(sink)
        self._where = where
        self._keeper = keeper
        self._number = 0  # of the last cut or flush
        self._told = 0  # how many tokens were reported with the last cut
        self._left = 0  # how many tokens were reported because the worker leaves
        self.final: tuple[int, Checkpoint] | None = None  # the cut at the end, which `end` makes; None: no part in it
        self._last: dict[int, LastDelivery | None] = {}  # checkpoint -> the last delivery before; of the newest two
        self._unknown_until = 0  # checkpoint: deliveries up to this one may be missing in the place
        self._flushed_at = 0.0  # seconds
        self.is_open = False
        self._activate: Callable[[], None] = lambda: None

    # Calls of its operator

    def begin(self, activate: Callable[[], None]) -> None:
        """Open the sink, once, and commit the tokens that must be committed before all others."""
        self._activate = activate
        if self.is_open:
            return
        keeper, standing = self._keeper, self._keeper.standing
        self._open(keeper.lineage)
        mismatch = None if keeper.has_joined else self._compare(standing)
        if mismatch is not None:
            keeper.tell(f"rows of {self.name}", mismatch.text)
        is_empty = mismatch is not None and not mismatch.is_newer
        is_unknown = self.name not in standing.found if keeper.has_joined else is_empty
        number, tokens = keeper.restored(self._sink, self.name)
        self._last[number] = last = last_deliveries(standing).get(self.name)
        self._unknown_until = last[1] if is_unknown and last is not None else 0
        self.commit(number, tokens)

    def write(self, epoch: int, batch: list[Any]) -> None:
        """Write some records."""
        self.total += len(batch)
        self.rows += len(batch)
        with self._calling(f"write({epoch}, …)"):
            self._write(epoch, batch)

    def cut(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Prepare the written records for a checkpoint; for the checkpoint at the end, `end` does it later."""
        if checkpoint.since is not None:
            self.has_committed(checkpoint.since)
        kept = {number: last for number, last in self._last.items() if number == checkpoint.since}
        self._last = kept | {checkpoint.number: next((each for each in checkpoint.last if each[0] == self.name), None)}
        if checkpoint.at_end:
            self.final = epoch, checkpoint
            return
        self._cut(epoch, checkpoint)

    def hand_over(self) -> bool:
        """Let other workers keep and commit the written records; return whether that is complete."""
        if self._keeper.store is None:
            self._flush()
            return True
        if self.rows and self.is_settled:
            self._prepare(0, self._number + 1)
        if len(self.tokens) > self._left:
            self._keeper.left(self.tokens[self._left :])
            self._left = len(self.tokens)
        return self.is_settled and not self.rows

    def turn(self) -> float | None:
        """Without a store: flush if it is time; return the seconds until then, None if nothing waits."""
        if self._keeper.store is not None or not self.rows:
            return None
        left = self._flushed_at + FLUSH_SECONDS - self._keeper.now()
        if left > 0 and self.rows < self._rows_max:
            return left
        self._flush()
        return None

    # Calls of the worker

    def compared(self, standing: Standing) -> Mismatch | None:
        """Open the sink and compare what it has delivered with what the store knows, as `lineage.compare` does.

        A sink that cannot tell is not opened.
        """
        if self.can_tell:
            self._open(standing.lineage)
        return self._compare(standing)

    def probe(self) -> bytes | None:
        """Write a probe to the place of the open sink; return its token. None if the sink has no probes."""
        if getattr(self._sink, "probe", None) is None:
            return None
        with self._calling("probe"):
            return encode(self._sink.probe())  # type: ignore[attr-defined]

    def sees(self, token: bytes) -> bool:
        """Return whether the probe of another worker's sink is at the place of this one."""
        with self._calling("sees"):
            return bool(self._sink.sees(decode(token)))  # type: ignore[attr-defined]

    def forget(self, token: bytes) -> None:
        """Remove a probe."""
        with self._calling("forget"):
            self._sink.forget(decode(token))  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.name!r}, {self._sink!r:.200}"

    @property
    def is_settled(self) -> bool:
        """Whether all records of cuts are prepared."""
        return True

    def has_committed(self, checkpoint: int) -> bool:
        """Commit the tokens of a checkpoint that is known to be committed; return whether there were any."""
        if checkpoint != self.done or not self._told:
            return False
        tokens, self.tokens = self.tokens[: self._told], self.tokens[self._told :]
        self._left, self._told = max(0, self._left - self._told), 0
        self.commit(checkpoint, tokens)
        self.held = self.held if self.tokens else 0
        return True

    def commit(self, number: int, tokens: Sequence[SinkToken]) -> None:
        """Commit tokens, of this worker or of any other."""
        for token in tokens:
            with self._calling(f"commit({number}, …)"):
                self._expect(number)
                self._commit(number, token)
            self.committed = number

    def written(self, outcome: snapshots.OutboxWritten) -> None:
        """Handle the outcome of `SinkKeeper.keep`. Only outboxes call that."""
        raise AssertionError("it keeps nothing in the store")

    def end(self) -> None:
        """Prepare the last records for the checkpoint at the end, if the worker takes part in one, or flush them."""
        self.begin(self._activate)
        if self._keeper.store is None:
            self._flush()
        if self.final is not None:
            self._cut(*self.final)

    def close(self) -> None:
        """Close the sink if it is open."""
        if self.is_open:
            self.is_open = False
            with self._calling("close"):
                self._sink.close()

    @property
    def can_tell(self) -> bool:
        """Whether the sink can tell what it has delivered; it may find out as it opens."""
        return getattr(self._sink, "delivered", None) is not None

    def _open(self, lineage: str) -> None:
        keeper, self.is_open = self._keeper, True
        with self._calling("open"):
            is_durable = keeper.store is not None or bool(lineage)
            joined = keeper.has_joined
            place = SinkPlace(self.name, keeper.worker, keeper.job, is_durable, lineage, joined)
            self._sink.open(place)

    def _compare(self, standing: Standing) -> Mismatch | None:
        if not standing.lineage or self.name in standing.accepted or not self.can_tell:
            return None
        found, other = self._delivered(standing.lineage), list[int]()
        if (earlier := before(standing, self.name)) is not None:
            newer = None if found is None else compare(standing, self.name, found, None, self._sink.rewrites)
            if newer is not None:
                return newer  # perhaps of another sink of the table
            standing, found = earlier, self._delivered(earlier.lineage)
        if found is None:
            other = [n[0] for each in others(standing, self.name) if (n := self._delivered(each)) is not None]
        return compare(standing, self.name, found, max(other, default=None), self._sink.rewrites)

    def _expect(self, number: int) -> None:
        """Tell the sink which tokens must be there when it commits one of a checkpoint: see rule 7 of `lineage`."""
        if (expect := getattr(self._sink, "expect", None)) is not None and self.can_tell:
            # It is not known to a worker that joined between the end of a checkpoint and its commit.
            _, n, names = self._last.get(number) or (self.name, 0, ())
            expect([name for name in names if not name.startswith(DIGEST)] if n > self._unknown_until else [])

    def _delivered(self, lineage: str) -> Delivered | None:
        with self._calling("delivered(…)"):
            found = self._sink.delivered(lineage)  # type: ignore[attr-defined]
            if found is None:
                return None
            match found:
                case (int() as n, list() as tokens):
                    return n, frozenset(token_name(encode(each)) for each in tokens)
            raise ProgramError(
                "delivered() must return a pair, the number of a checkpoint and the list of its tokens that were "
                f"committed, or None, not {found!r:.100}."
            )

    # Methods that an outbox overrides

    def check(self, records: list[Any]) -> None:
        """Raise ProgramError for a record that the sink could not write. Only outboxes can tell before they are open.
        """

    def _write(self, epoch: int, batch: list[Any]) -> None:
        self._sink.write(epoch, batch)

    def _cut(self, epoch: int, checkpoint: Checkpoint) -> None:
        self._number = checkpoint.number
        self._prepare(epoch, checkpoint.number)
        self._settle()

    def _prepare(self, epoch: int, number: int) -> None:
        """Prepare the written records."""
        with self._calling(f"prepare({number})"):
            self._add(number, self._sink.prepare(number))
        self.held, self.rows = self.held + self.rows, 0

    def _commit(self, number: int, token: SinkToken) -> None:
        self._sink.commit(number, decode(token.token))

    def _flush(self) -> None:
        if not self.rows:
            return
        self._number, self._flushed_at = self._number + 1, self._keeper.now()
        with self._calling(f"prepare({self._number})"):
            token = self._sink.prepare(self._number)
        if token is not None:
            with self._calling(f"commit({self._number}, …)"):
                self._sink.commit(self._number, token)
        self.rows, self.committed = 0, self._number

    # Helpers of these

    def _add(self, number: int, token: Any, segments: tuple[SegmentRef, ...] = ()) -> None:
        if token is None:
            return
        encoded = encode(token)
        if len(encoded) > TOKEN_BYTES_MAX:
            raise ProgramError(
                f"The sink's token has {len(encoded)} bytes, more than the limit of {TOKEN_BYTES_MAX}. Store the "
                "rows elsewhere, and return their place as the token."
            )
        self.tokens.append(SinkToken(self.name, number, encoded, self._keeper.worker, segments))

    def _settle(self) -> None:
        """Report that everything is prepared for the last cut."""
        self.done, self._told = self._number, len(self.tokens)
        self._keeper.prepared(self._number)

    def _calling(self, what: str) -> AbstractContextManager[None]:
        """Add a note to an error: the sink, its place in the program, the worker, and the call."""
        worker = self._keeper.worker
        return noting(lambda: f"in operator 'write {self.name}' ({self._where}), worker {worker}, in {what}")

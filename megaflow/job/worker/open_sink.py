"""A sink on one worker: what is written and not prepared, prepared and not committed, and what becomes of it.

The worker's thread calls everything here. With a store
 1. a token that was prepared is told the coordinator with the next cut, and with each one after that, until a
    checkpoint is committed that it was told with. So what an abandoned checkpoint was to have is in the next one.
 2. It is committed when that is known, by the word or by a command that follows the checkpoint: in any case before
    anything more is prepared. So when a checkpoint is committed all tokens of the one before are.
 3. What a worker that leaves has is prepared as soon as it is written, and all its tokens are told: others commit them,
    but for those that turn out to be committed already.
Without a store what was written is prepared and committed once a second, and when the worker ends.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from megaflow.connect.sink import Sink, SinkPlace
from megaflow.connect.write_operator import Outlet
from megaflow.durable.commits import SinkToken
from megaflow.durable.segments import SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import ProgramError
from megaflow.job.worker.cut_packer import OutboxCut
from megaflow.megaphone.routing import Checkpoint
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

FLUSH_SECONDS: Final = 1.0  # without a store
TOKEN_BYTES_MAX: Final = 64 << 10  # commits are to stay small


class SinkKeeper(Protocol):
    """What a sink needs of the rest of its worker."""

    worker: int  # its id
    job: str  # the job's name
    store: Store | None  # None: nothing is durable
    folder: str  # of the store; "": it has none

    def now(self) -> float:
        """Seconds that never go back."""

    def restored(self, sink: Sink[Any], name: str) -> tuple[int, Sequence[SinkToken]]:
        """Return which tokens are to be committed here before all else, and of which checkpoint they are."""

    def keep(self, cut: OutboxCut) -> None:
        """Have what an outbox has written to the store."""

    def prepared(self, number: int) -> None:
        """Learn that a sink has prepared all for a checkpoint."""

    def failed(self, number: int, reason: str) -> None:
        """Learn that it could not."""

    def left(self, tokens: Sequence[SinkToken]) -> None:
        """Learn which tokens others are to commit, as the worker leaves."""


class OpenSink(Outlet):
    """A sink that prepares by itself, on one worker."""

    def __init__(self, sink: Sink[Any], name: str, where: str, keeper: SinkKeeper) -> None:
        self.name = name
        self.tokens: list[SinkToken] = []  # that were prepared here and are not known to be committed, in order
        self.done = 0  # the last checkpoint for which all was prepared
        self.committed: int | None = None  # the last checkpoint, or flush, of which something was committed here
        self.rows = 0  # that were written since the last cut or flush
        self.held = 0  # that were prepared, and are not known to be committed
        self._sink = copy.copy(sink)
        self._where = where
        self._keeper = keeper
        self._number = 0  # of the last cut or flush
        self._told = 0  # so many of the tokens were told with the last cut
        self._left = 0  # so many of all were told as the worker leaves
        self._final: tuple[int, Checkpoint] | None = None  # the cut at the end, which is to come
        self._flushed_at = 0.0  # seconds
        self._is_open = False
        self._activate: Callable[[], None] = lambda: None

    # What its operator asks for

    def begin(self, activate: Callable[[], None]) -> None:
        """Open it, once, and commit what is to be committed before all else."""
        self._activate = activate
        if self._is_open:
            return
        keeper, self._is_open = self._keeper, True
        with self._calling("open"):
            self._sink.open(SinkPlace(self.name, keeper.worker, keeper.job, keeper.store is not None))
        number, tokens = keeper.restored(self._sink, self.name)
        self.commit(number, tokens)

    def write(self, epoch: int, batch: list[Any]) -> None:
        """Write some records."""
        self.rows += len(batch)
        with self._calling(f"write({epoch}, …)"):
            self._write(epoch, batch)

    def cut(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Prepare what was written, for a checkpoint; of the one at the end when `end` is called."""
        if checkpoint.since is not None:
            self.has_committed(checkpoint.since)
        if checkpoint.at_end:
            self._final = epoch, checkpoint
            return
        self._cut(epoch, checkpoint)

    def hand_over(self) -> bool:
        """Have others keep and commit what was written; return whether they will."""
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
        """Without a store: flush if it is time; return when it will be."""
        if self._keeper.store is not None or not self.rows:
            return None
        left = self._flushed_at + FLUSH_SECONDS - self._keeper.now()
        if left > 0 and not self._is_full():
            return left
        self._flush()
        return None

    # What others tell

    @property
    def is_settled(self) -> bool:
        """Whether all that was cut is prepared."""
        return True

    @property
    def has_final(self) -> bool:
        """Whether the worker has a part in the checkpoint at the end."""
        return self._final is not None

    def has_committed(self, checkpoint: int) -> bool:
        """Learn that a checkpoint is committed; commit what it has, and return whether that was something."""
        if checkpoint != self.done or not self._told:
            return False
        tokens, self.tokens = self.tokens[: self._told], self.tokens[self._told :]
        self._left, self._told = max(0, self._left - self._told), 0
        self.commit(checkpoint, tokens)
        self.held = self.held if self.tokens else 0
        return True

    def commit(self, number: int, tokens: Sequence[SinkToken]) -> None:
        """Commit tokens, prepared by anybody."""
        for token in tokens:
            with self._calling(f"commit({number}, …)"):
                self._commit(number, token)
            self.committed = number

    def written(self, cut: OutboxCut, segments: tuple[SegmentRef, ...], failure: str | None) -> None:
        """Learn what has become of what `SinkKeeper.keep` was given."""
        raise AssertionError("it keeps nothing in the store")

    def end(self) -> None:
        """Prepare what was written for the checkpoint at the end, if the worker has a part in one; or flush it."""
        self.begin(self._activate)
        if self._keeper.store is None:
            self._flush()
        if self._final is not None:
            self._cut(*self._final)

    def close(self) -> None:
        """Close it, if it is open."""
        if self._is_open:
            self._is_open = False
            with self._calling("close"):
                self._sink.close()

    # What an outbox does otherwise

    def _write(self, epoch: int, batch: list[Any]) -> None:
        self._sink.write(epoch, batch)

    def _cut(self, epoch: int, checkpoint: Checkpoint) -> None:
        self._number = checkpoint.number
        self._prepare(epoch, checkpoint.number)
        self._settle()

    def _prepare(self, epoch: int, number: int) -> None:
        """Prepare what was written."""
        with self._calling(f"prepare({number})"):
            self._add(number, self._sink.prepare(number))
        self.held, self.rows = self.held + self.rows, 0

    def _commit(self, number: int, token: SinkToken) -> None:
        self._sink.commit(number, decode(token.token))

    def _is_full(self) -> bool:
        return False

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

    # Parts of these

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
        """Tell that all is prepared for the last cut."""
        self.done, self._told = self._number, len(self.tokens)
        self._keeper.prepared(self._number)

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """Say on an error which sink raised it, where, and in what."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in operator 'write {self.name}' ({self._where}), worker {self._keeper.worker}, in {what}")
            raise

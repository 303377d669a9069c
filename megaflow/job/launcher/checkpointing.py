"""Checkpoints as the launcher's loop sees them, from their begin to their commit; and what a stop and the end wait for.

1. One is under way at a time (see `megaflow.control.checkpoint_messages`). It is committed when it is complete: what
   the workers have written, what is left to be read, and the output before it, synced.
2. One that fails costs nothing but time: the job goes on, says so once, and the next one is tried. After UNDURABLE_MAX
   seconds without one the job ends, since nobody sees what it says.
3. After the last one of a stop, which keeps all that was taken in, the workers are ended: what they still have is read
   again by the next run, so the output is cut back to what is committed.
4. At the end of all lines the workers that have ended bring their parts. The job has succeeded when that is committed.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from megaflow.control import checkpoint_messages as messages
from megaflow.errors import ProtocolError, StoreError
from megaflow.job.launcher.commit_draft import CommitDraft
from megaflow.job.launcher.epoch_merge import Mark
from megaflow.job.launcher.store_keeper import StoreKeeper

UNDURABLE_MAX: Final = 600.0  # seconds


class Checkpointing:
    """What is under way. One writer: the launcher's loop."""

    def __init__(
        self,
        keeper: StoreKeeper,
        output: str,
        mark: Callable[[Mark], None],
        tell: Callable[[messages.Committed | messages.CommitFailed], None],
        report: Callable[[str], None],
    ) -> None:
        """`mark` puts a mark into the output, `tell` tells the coordinator, `report` the user."""
        self._keeper = keeper
        self._output = output  # as the store names it
        self._mark = mark
        self._tell = tell
        self._report = report
        self._draft: CommitDraft | None = None  # None: there is none, or it is being committed
        self._committing: CommitDraft | None = None
        self._failing_since: float | None = None  # seconds of the clock
        self._failure: str | None = None  # of a part at the end
        self.is_stopped = False  # the last checkpoint of a stop is committed
        self.has_ended = False  # that of the end is

    def take(self, message: object) -> None:
        """Take what the coordinator says. Raises ProtocolError for what cannot be, StoreError as rule 2 says."""
        match message:
            case messages.CheckpointBegun(checkpoint, epoch, at_end=at_end):
                if self._draft is not None or self._committing is not None:
                    raise ProtocolError(f"checkpoint {checkpoint} begins while another one is under way")
                self._draft = CommitDraft(message)
                self._mark(Mark(checkpoint, float("inf") if at_end else epoch))
            case messages.CheckpointReady(checkpoint):
                self._draft_of(checkpoint).ready = message
                self._commit_if_complete()
            case messages.CheckpointAbandoned(checkpoint, reason):
                self._draft_of(checkpoint)
                self._draft = None
                self._fail(checkpoint, reason)

    def synced(self, marks: Iterable[tuple[Mark, int]]) -> None:
        """Take in how long the output was at marks that it has reached."""
        for mark, length in marks:
            if self._draft is not None and self._draft.begun.checkpoint == mark.checkpoint:
                self._draft.length = length
        self._commit_if_complete()

    def ended(self, part: messages.CutWritten | messages.CutFailed | None) -> None:
        """Take in the part of a worker that has ended; None: it has none."""
        draft = self._draft
        if part is None or draft is None or part.checkpoint != draft.begun.checkpoint:
            return
        if isinstance(part, messages.CutFailed):
            self._failure = part.reason
        else:
            draft.parts.append(part)

    def end(self) -> None:
        """Note that all workers have ended. Raises StoreError if what they had is not kept."""
        draft = self._draft
        if draft is None or not draft.begun.at_end:
            return
        if self._failure is not None:
            raise StoreError(f"{self._failure}; {self._kept_text()}")
        draft.end()
        self._commit_if_complete()

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be committed still, once all workers have ended."""
        return self._committing is not None or (self._draft is not None and self._draft.begun.at_end)

    def settle(self) -> None:
        """Take in what has become of commits. Raises StoreError."""
        for result in self._keeper.results():
            draft, self._committing = self._committing, None
            assert draft is not None, "it was being committed"
            self._tell(result)
            if isinstance(result, messages.CommitFailed):
                self._fail(result.checkpoint, result.reason)
                if draft.begun.at_end:
                    raise StoreError(f"{result.reason}; {self._kept_text()}")
            else:
                self._failing_since = None
                self.is_stopped = draft.begun.last
                self.has_ended = draft.begun.at_end

    def _draft_of(self, checkpoint: int) -> CommitDraft:
        if self._draft is None or self._draft.begun.checkpoint != checkpoint:
            raise ProtocolError(f"checkpoint {checkpoint} is not under way")
        return self._draft

    def _commit_if_complete(self) -> None:
        draft = self._draft
        if draft is None or not draft.is_complete:
            return
        self._draft, self._committing = None, draft
        commit, left = draft.commit(self._keeper.latest, self._output, time.time())
        self._keeper.commit(commit, left)

    def _fail(self, checkpoint: int, reason: str) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._report(f"checkpoint {checkpoint} failed: {reason}; the job goes on, and the next one is tried")
        elif now - self._failing_since > UNDURABLE_MAX:
            raise StoreError(
                f"no checkpoint could be taken for {UNDURABLE_MAX / 60:g} minutes: {reason}; {self._kept_text()}"
            )

    def _kept_text(self) -> str:
        kept = self._keeper.latest
        return f"the store {self._keeper.path} has checkpoint {kept.checkpoint}: run the same command again"

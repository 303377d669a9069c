"""Checkpoints as the launcher's loop sees them, from their begin to their commit; and what a stop and the end wait for.

1. One is under way at a time (see `megaflow.control.checkpoint_messages`). It is committed when it is complete: what
   the workers have written, what is left to be read, and the output before it, synced.
2. One that fails costs nothing but time: the job goes on, says so once, and the next one is tried. After UNDURABLE_MAX
   seconds without one the job ends, since nobody sees what it says.
3. After the last one of a stop, which keeps all that was taken in, the workers are ended: what they still have is read
   again by the next run, so the output is cut back to what is committed.
4. At the end of all lines the workers that have ended bring their parts. The job has succeeded when that is committed.
5. What sinks have prepared workers commit once the checkpoint is. A stop waits for those that have something to commit.
   At the end all workers of a job with sinks stay when they have told their parts, until the launcher says that it is,
   as nobody coordinates any more; what workers that have left had prepared goes to one of them.
6. After a hand-over the next coordinator's words come by another connection, perhaps before the last one's that it had
   begun a checkpoint and abandoned it: these are ignored. One that was ready is over before the hand-over begins, since
   the last one waited for this to answer.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from megaflow.control import checkpoint_messages as messages
from megaflow.errors import ProtocolError, StoreError
from megaflow.job.launcher.commit_draft import CommitDraft
from megaflow.job.launcher.epoch_merge import Leaving, Mark
from megaflow.job.launcher.machine import Machine
from megaflow.job.launcher.output_queue import OutputQueue
from megaflow.job.launcher.store_keeper import StoreKeeper

UNDURABLE_MAX: Final = 600.0  # seconds

Part: TypeAlias = messages.CutWritten | messages.CutFailed | messages.TokensAt


class Checkpointing:
    """What is under way; nothing ever, if there is no store. One writer: the launcher's loop."""

    def __init__(
        self,
        keeper: StoreKeeper | None,
        output: OutputQueue,
        mark: Callable[[Mark], list[Leaving]],
        tell: Callable[[messages.Committed | messages.CommitFailed], None],
        report: Callable[[str], None],
        machine: Machine,
        tell_all: Callable[[messages.CommittedAtEnd], None] = lambda word: None,
    ) -> None:
        """`mark` says what leaves by a mark in the outputs, `tell` tells the coordinator, `report` the user.

        `tell_all` tells all processes.
        """
        self._keeper = keeper
        self._output = output
        self._mark = mark
        self._tell = tell
        self._tell_all = tell_all
        self._report = report
        self._machine = machine
        self._draft: CommitDraft | None = None  # None: there is none, or it is being committed
        self._committing: CommitDraft | None = None
        self._failing_since: float | None = None  # seconds of the clock
        self._reason = ""  # why the last one that failed has
        self._parts: list[Part] = []  # of workers that have ended
        self._at_end: set[int] = set()  # workers that have ended, but for what their sinks are to commit
        self._is_ending = False  # what these are is being committed
        self._committers: set[int] = set()  # workers that have something to commit of the last checkpoint of a stop
        self._stopping_at: int | None = None  # that, once it is committed
        self._has_ended = False  # the checkpoint of the end is committed
        self._deadline: int | None = None  # microseconds, the greatest of what workers have closed as they ended
        self.stopped_at: int | None = None  # the last checkpoint of a stop, when it is committed
        self._length = 0  # of the output, in that
        self._begun = 0  # the last checkpoint that has

    @property
    def stopping(self) -> str:
        """What comes of a stop, for the user."""
        if self._keeper is None:
            return "finishing the lines that were read; a second signal kills the job"
        if self._failing_since is None:
            return "taking a last checkpoint; a second signal ends the job without it"
        return (
            f"checkpoints fail ({self._reason}); retrying a last checkpoint for {UNDURABLE_MAX / 60:g} minutes; "
            "a second signal ends the job without it and keeps what was committed"
        )

    def start(self, wake: Callable[[], None]) -> None:
        """Have commits begin; `wake` is called when `settle` has something to do, by a thread."""
        if self._keeper is not None:
            self._keeper.start(wake)

    def take(self, message: object) -> bool:
        """Take what the coordinator says; return False for what is nothing of this.

        Raises ProtocolError for what cannot be, StoreError as rule 2 says.
        """
        if self._keeper is None:
            return False
        match message:
            case messages.CheckpointBegun(checkpoint) if checkpoint < self._begun:
                pass
            case messages.CheckpointBegun(checkpoint, epoch, at_end=at_end):
                if self._committing is not None or (self._draft is not None and self._draft.ready is not None):
                    raise ProtocolError(f"checkpoint {checkpoint} begins while another one is under way")
                self._begun = checkpoint
                self._draft = CommitDraft(message)
                mark = Mark(checkpoint, float("inf") if at_end else epoch)
                self._output.put([mark] if self._output.is_silent else self._mark(mark))
            case messages.CheckpointReady(checkpoint):
                self._draft_of(checkpoint).ready = message
                self._commit_if_complete()
            case messages.CheckpointAbandoned(checkpoint) if checkpoint < self._begun:
                pass
            case messages.CheckpointAbandoned(checkpoint, reason):
                self._draft_of(checkpoint)
                self._draft = None
                self._fail(checkpoint, reason)
            case _:
                return False
        return True

    def ended(
        self, cut: Part | None, sinks: Part | None = None, worker: int = 0, deadline: int | None = None
    ) -> bool:
        """Take in the parts of a worker that has ended; None: it has none. Return whether it waits for a word.

        `deadline`: of what it has closed because of that. The parts may come before the word that this checkpoint has
        begun, which another process sends.
        """
        if deadline is not None:
            self._deadline = max(deadline, self._deadline or deadline)
        self._parts += [part for part in (cut, sinks) if part is not None]
        if sinks is not None:
            self._at_end.add(worker)
        return sinks is not None

    def end_if_all_have(self, running: Iterable[Collection[int]]) -> None:
        """Commit the end if only such workers are left as wait for that; these run, of each process."""
        if self._at_end and all(self._at_end.issuperset(workers) for workers in running):
            self.end()

    def sinks_committed(self, word: messages.SinksCommitted) -> bool:
        """Note that a worker has committed what it was to; return whether it has waited for the end."""
        if self._stopping_at == word.checkpoint:
            self._committers.discard(word.worker)
            self._stop_if_committed()
        return word.worker in self._at_end

    def _stop_if_committed(self) -> None:
        if not self._committers:
            self.stopped_at = self._stopping_at

    def end(self) -> None:
        """Note that all workers have ended, and well; or were ended after the last checkpoint of a stop.

        Raises StoreError if what they had is not kept.
        """
        draft = self._draft
        if self.stopped_at is not None:
            self._output.cut_back(self._length)  # not before: until they were ended they have put out more
        if self._keeper is None or self.stopped_at is not None or self._is_ending:
            return
        if draft is None or not draft.begun.at_end:
            raise StoreError("the job has ended without a last checkpoint")
        for part in self._parts:
            if isinstance(part, messages.CutFailed):
                raise StoreError(part.reason)
            if part.checkpoint == draft.begun.checkpoint:
                draft.add(part)
        self._is_ending = True
        draft.deadline = self._deadline
        draft.end()
        self._commit_if_complete()

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be committed still, once all workers have ended."""
        return self._keeper is not None and self.stopped_at is None and not self._has_ended

    def settle(self) -> None:
        """Take in how far the output is, and what has become of commits. Raises StoreError."""
        if self._keeper is None:
            return
        for mark, length in self._output.synced():
            if self._draft is not None and self._draft.begun.checkpoint == mark.checkpoint:
                self._draft.length = length
        self._commit_if_complete()
        for result in self._keeper.results():
            draft, self._committing = self._committing, None
            assert draft is not None and draft.length is not None, "it was being committed"
            self._tell(result)
            if isinstance(result, messages.CommitFailed):
                self._fail(result.checkpoint, result.reason)
                if draft.begun.at_end:
                    raise StoreError(result.reason)
            else:
                self._failing_since = None
                self._output.committed(draft.length)
                self._has_ended = draft.begun.at_end
                if draft.begun.last:
                    assert draft.ready is not None, "it is committed"
                    self._stopping_at, self._length = result.checkpoint, draft.length
                    self._committers = set(draft.ready.committers)
                    self._stop_if_committed()
                if draft.begun.at_end and draft.begun.sinks:
                    first = min(self._at_end)
                    self._tell_all(messages.CommittedAtEnd(result.checkpoint, first, draft.begun.tokens))

    def _draft_of(self, checkpoint: int) -> CommitDraft:
        if self._draft is None or self._draft.begun.checkpoint != checkpoint:
            raise ProtocolError(f"checkpoint {checkpoint} is not under way")
        return self._draft

    def _commit_if_complete(self) -> None:
        draft, keeper = self._draft, self._keeper
        if keeper is None or draft is None or not draft.is_complete:
            return
        self._draft, self._committing = None, draft
        assert draft.length is not None, "it is complete"
        commit, left = draft.commit(keeper.latest, self._output.lengths(draft.length), self._machine.wall())
        keeper.commit(commit, left, draft.length, draft.begun.names)

    def _fail(self, checkpoint: int, reason: str) -> None:
        now, self._reason = self._machine.now(), reason
        if self._failing_since is None:
            self._failing_since = now
            self._report(f"checkpoint {checkpoint} failed: {reason}; the job continues and will try the next one")
        elif now - self._failing_since > UNDURABLE_MAX:
            raise StoreError(f"All checkpoints of the last {UNDURABLE_MAX / 60:g} minutes failed: {reason}")

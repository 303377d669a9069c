"""Checkpoints in the launcher's loop, from their beginning to their commit, and the last commits of a job.

`CommitDraft` collects the parts of one checkpoint, and `StoreKeeper` writes the commit.

1. One checkpoint is under way at a time (see `megaflow.control.checkpoint_messages`). The launcher commits it when it
   is complete: workers have written their parts, the rest of the input is known, and the output before it is synced.
2. A failed checkpoint costs only time. The job goes on, reports the first failure in a row, and tries the next
   checkpoint. After UNDURABLE_MAX seconds without a success the job ends, because no user may read the report.
3. The last checkpoint of a stop contains everything that the workers have taken in by then. After its commit the
   launcher ends the workers. The next run reads again whatever they took in later, so the output is cut back to the
   committed length.
4. At the end of all lines, workers send their parts as they end. The job succeeds when the checkpoint is committed.
5. Workers commit what their sinks have prepared once the checkpoint is committed. A stop waits for the workers that
   have something to commit. At the end of a job with sinks, no coordinator is left. So every worker stays after it has
   sent its parts, until the launcher announces the commit (`CommittedAtEnd`). The lowest-numbered of these workers also
   commits the tokens of workers that left. When all tokens of the last checkpoint are committed, a further commit
   without tokens ends the run. So a later run does not commit them again, when a database may have lost the marks. If
   the launcher is killed before that, the next run commits the tokens again, and the marks decide.
6. The summary of a stop counts the lines, the records and what was left out (`LeftOut`) up to its checkpoint. Workers
   that have ended before have reported theirs. The launcher ends the others by force. So their sources report what they
   have read and skipped together with their positions. Operators with windows report late records with their cuts, and
   each worker reports the records of the epochs that it closes.
7. After a hand-over, the next coordinator's messages come over another connection. They may overtake the last
   coordinator's messages about a checkpoint that it began and abandoned; the launcher ignores the latter. A checkpoint
   that was ready is over before a hand-over begins, because the last coordinator waited for the launcher's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from megaflow.control import checkpoint_messages as messages
from megaflow.control.launcher_messages import OutputClosed
from megaflow.errors import ProtocolError, StoreError
from megaflow.job.launcher import store
from megaflow.job.launcher.outputs.epoch_merge import Leaving, Mark
from megaflow.job.launcher.run.machine import JobParts
from megaflow.job.launcher.run.run_summary import RecordsBefore, RunSummary
from megaflow.quick_dataclass import dataclass

UNDURABLE_MAX: Final = 600.0  # seconds

Part: TypeAlias = messages.CutWritten | messages.CutFailed | messages.TokensAt


@dataclass(eq=False)
class Checkpointing:
    """The checkpoint under way; always none if the job has no store. One writer: the launcher's loop."""

    parts: JobParts
    mark: Callable[[Mark], list[Leaving]]  # sets a mark in the outputs and returns what leaves now
    tell: Callable[[messages.Committed | messages.CommitFailed], None]  # sends a message to the coordinator
    tell_all: Callable[[messages.CommittedAtEnd], None] = lambda word: None  # to all processes

    def __post_init__(self) -> None:
        self._keeper, self._output, self._report = self.parts.keeper, self.parts.output, self.parts.report
        self._draft: store.CommitDraft | None = None  # until its commit has succeeded or failed
        self._final: store.CommitDraft | None = None  # the checkpoint of a stop or of the end, once it is committed
        self._undelivered: set[int] = set()  # workers that have not reported their sinks' commits for that
        self._failing_since: float | None = None  # seconds of the clock
        self._reason = ""  # why the last checkpoint to fail has failed
        self._parts: list[Part] = []  # of workers that have ended
        self._at_end: set[int] = set()  # workers that have ended, but for their sinks' commits
        self._is_last = False  # the commit without tokens is being written
        self._deadline: int | None = None  # microseconds, the greatest of workers that have ended
        self._records = RecordsBefore()  # that came out before the newest checkpoint
        self._begun = 0  # the last checkpoint that has begun

    @property
    def stopping(self) -> str:
        """What happens next after a request to stop, as text for the user."""
        if self._keeper is None:
            return "finishing the lines that were read; a second signal kills the job"
        if self._failing_since is None:
            return "taking a last checkpoint; a second signal ends the job without it"
        return (
            f"checkpoints fail ({self._reason}); retrying a last checkpoint for {UNDURABLE_MAX / 60:g} minutes; "
            "a second signal ends the job without it and keeps what was committed"
        )

    @property
    def stopped(self) -> store.CommitDraft | None:
        """The last checkpoint of a stop, once it is committed, with all that the sinks prepared for it."""
        is_over = self._final is not None and self._final.begun.last and not self._undelivered
        return self._final if is_over else None

    @property
    def _has_ended(self) -> bool:
        """Whether the checkpoint of the end is committed."""
        return self._final is not None and self._final.begun.at_end

    def start(self, wake: Callable[[], object]) -> None:
        """Start the thread that commits; it calls `wake` when `settle` has something to do."""
        if self._keeper is not None:
            self._keeper.start(wake)

    def take(self, message: object) -> bool:
        """Handle a message of the coordinator; return False if it is not about checkpoints.

        Raises ProtocolError for an impossible message, and StoreError as rule 2 says.
        """
        if self._keeper is None:
            return False
        match message:
            case messages.CheckpointBegun(checkpoint) if checkpoint < self._begun:
                pass
            case messages.CheckpointBegun(checkpoint, epoch, at_end=at_end):
                if self._draft is not None and self._draft.ready is not None:
                    raise ProtocolError(f"checkpoint {checkpoint} begins while another one is under way")
                self._begun = checkpoint
                self._draft = store.CommitDraft(message, self.parts.machine.wall())
                mark = Mark(checkpoint, float("inf") if at_end else epoch)
                self._records.begin(epoch)
                self._output.put(self.mark(mark))
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
        """Take in the parts of a worker that has ended; None: it has none. Return whether it waits for the commit.

        `deadline`: the greatest watermark that the windows closed by the end would have waited for. The parts may come
        before the message that their checkpoint has begun, because another process sends that.
        """
        if deadline is not None:
            self._deadline = max(deadline, self._deadline or deadline)
        self._records.ended(worker)
        self._parts += [part for part in (cut, sinks) if part is not None]
        if sinks is not None:
            self._at_end.add(worker)
        return sinks is not None

    def counted(self, closed: OutputClosed) -> OutputClosed:
        """Count the records that a worker has output; return its report unchanged."""
        self._records.add(closed)
        return closed

    def sum_up(self, summary: RunSummary) -> None:
        """Add what happened before the last checkpoint of a stop, if there is one, to a summary."""
        if (last := self.stopped) is not None and last.ready is not None:
            summary.stopped_at = last.begun.checkpoint
            summary.lines += last.ready.lines  # of workers that have not ended
            summary.records += self._records.total
            summary.leave_out(last.ready.left_out)

    def end_if_all_have(self, running: Iterable[Collection[int]]) -> None:
        """Commit the end if all workers that run, given by process, wait for that commit."""
        if self._at_end and all(self._at_end.issuperset(workers) for workers in running):
            self.end()

    def sinks_committed(self, word: messages.SinksCommitted) -> bool:
        """Note that a worker's sinks have committed; return whether the worker was waiting for the end."""
        if self._final is not None and self._final.begun.checkpoint == word.checkpoint:
            self._undelivered.discard(word.worker)
        return word.worker in self._at_end

    def end(self) -> None:
        """Note that all workers have ended well, or that the launcher ended them after the last checkpoint of a stop.

        Raises StoreError if there is no checkpoint for what they had, or if a worker failed to write its part.
        """
        draft = self._draft
        if (last := self.stopped) is not None and last.length is not None:
            self._output.cut_back(last.length)  # not earlier: the workers sent output until they were ended
        if self._keeper is None:
            return
        if last is not None or self._has_ended:
            if (latest := self._keeper.latest).tokens and not self._undelivered:
                self._is_last = True
                self._keeper.commit(store.ToCommit(store.without_tokens(latest), None, self._keeper.length))
            return
        if draft is None or not draft.begun.at_end:
            raise StoreError("the job has ended without a last checkpoint")
        if draft.ready is not None:
            return  # it is being committed
        for part in self._parts:
            if isinstance(part, messages.CutFailed):
                raise StoreError(part.reason) from OSError(part.errno, part.reason)
            if part.checkpoint == draft.begun.checkpoint:
                draft.add(part)
        draft.deadline = self._deadline
        draft.end()
        self._commit_if_complete()

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is still missing after all workers have ended."""
        return self._keeper is not None and ((self.stopped is None and not self._has_ended) or self._is_last)

    def settle(self) -> None:
        """Take in how far the output is synced, and the results of commits. Raises StoreError."""
        if self._keeper is None:
            return
        for mark, length in self._output.synced():
            if self._draft is not None and self._draft.begun.checkpoint == mark.checkpoint:
                self._draft.length = length
        self._commit_if_complete()
        for result in self._keeper.results():
            if self._is_last:
                self._is_last = False
                if isinstance(result, messages.CommitFailed):
                    self._report(f"{result.reason}; the next run delivers the last rows again, and their marks decide")
                continue
            draft, self._draft = self._draft, None
            assert draft is not None and draft.ready is not None and draft.length is not None, "it was being committed"
            self.tell(result)
            if isinstance(result, messages.CommitFailed):
                self._fail(result.checkpoint, result.reason)
                if draft.begun.at_end:
                    raise StoreError(result.reason)
                continue
            self._failing_since = None
            self._output.committed(draft.length)
            if draft.begun.last or draft.begun.at_end:
                self._final, self._undelivered = draft, set(draft.ready.committers)
            if draft.begun.at_end and draft.begun.sinks:
                self._undelivered = set(self._at_end)
                first = min(self._at_end)
                self.tell_all(messages.CommittedAtEnd(result.checkpoint, first, draft.begun.tokens))

    def _draft_of(self, checkpoint: int) -> store.CommitDraft:
        if self._draft is None or self._draft.is_committing or self._draft.begun.checkpoint != checkpoint:
            raise ProtocolError(f"checkpoint {checkpoint} is not under way")
        return self._draft

    def _commit_if_complete(self) -> None:
        draft, keeper = self._draft, self._keeper
        if keeper is None or draft is None or not draft.is_complete:
            return
        assert draft.length is not None, "it is complete"
        lengths, wall = self._output.lengths(draft.length), self.parts.machine.wall()
        keeper.commit(draft.commit(keeper.latest, lengths, wall, keeper.dropped))

    def _fail(self, checkpoint: int, reason: str) -> None:
        now, self._reason = self.parts.machine.now(), reason
        if self._failing_since is None:
            self._failing_since = now
            self._report(f"checkpoint {checkpoint} failed: {reason}; the job continues and will try the next one")
        elif now - self._failing_since > UNDURABLE_MAX:
            raise StoreError(f"All checkpoints of the last {UNDURABLE_MAX / 60:g} minutes failed: {reason}")

"""A checkpoint that has begun and is neither committed nor abandoned: the reports so far, and the missing ones.

Its tokens name what sinks have prepared. They come from members and from workers that left before it began. A worker
that announced a leave but stayed reports its tokens twice. It commits its own; the lowest-numbered worker commits
those of workers that have left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TypeAlias

from megaflow.control.checkpoint_messages import CheckpointReady, CutFailed, CutWritten, LeftOut, PositionsAt, TokensAt
from megaflow.control.coordinator.base.events import Asked
from megaflow.control.messages import CheckpointJob, Split, SplitEnd
from megaflow.durable.commits import SinkToken, SourcePartition, UntakenLines
from megaflow.durable.segments import SegmentRef
from megaflow.quick_dataclass import dataclass

Report: TypeAlias = CutWritten | CutFailed | PositionsAt | TokensAt


@dataclass(slots=True)
class UnderWay:
    """The checkpoint with this number. One writer: `Checkpoints`."""

    number: int
    epoch: int
    begun: float  # seconds
    last: bool
    asked: list[Asked]
    cuts: set[int]  # workers that have not written
    positions: set[int]  # workers whose sources have not reported their positions
    sinks: set[int]  # workers whose sinks have not prepared
    tokens_left: list[SinkToken]  # of workers that had left when it began
    segments: list[SegmentRef] = field(default_factory=list)
    whole: dict[str, list[int]] = field(default_factory=dict)  # operator -> bins that were written whole
    splits: list[Split] = field(default_factory=list)
    partitions: list[SourcePartition] = field(default_factory=list)
    untaken: list[UntakenLines] = field(default_factory=list)
    prepared: dict[int, tuple[SinkToken, ...]] = field(default_factory=dict)  # worker -> its tokens, in order
    spark: tuple[tuple[str, int], ...] = ()  # query, newest batch in it
    lines: int = 0  # read before its epoch
    left_out: LeftOut = LeftOut()  # before its epoch
    read: tuple[tuple[int, SplitEnd], ...] = ()  # as in `CheckpointReady`
    seconds: float = 0.0  # spent by the slowest worker
    ready: bool = False  # the launcher has it

    @property
    def is_reported(self) -> bool:
        """Whether all reports have arrived."""
        return not (self.cuts or self.positions or self.sinks)

    @property
    def adopted(self) -> tuple[SinkToken, ...]:
        """Tokens of workers that have left and cannot commit them."""
        own = {token for tokens in self.prepared.values() for token in tokens}
        return tuple(token for token in self.tokens_left if token not in own)

    @property
    def tokens(self) -> tuple[SinkToken, ...]:
        """All tokens: first those of workers that have left, then each member's in its own order."""
        return *self.adopted, *(token for worker in sorted(self.prepared) for token in self.prepared[worker])

    def learn(self, source: int, report: Report) -> str | None:
        """Record a worker's report; return why the checkpoint fails, if it does."""
        match report:
            case CutWritten(_, segments, whole, seconds, left_out) if source in self.cuts:
                self.cuts.discard(source)
                self.left_out += left_out
                self.segments += segments
                for operator, bins in whole:
                    self.whole.setdefault(operator, []).extend(bins)
                self.seconds = max(self.seconds, seconds)
            case PositionsAt(_, splits, untaken, partitions, lines, left_out) if source in self.positions:
                self.positions.discard(source)
                self.lines += lines
                self.left_out += left_out
                self.splits += splits
                self.partitions += partitions
                self.untaken += untaken
            case TokensAt(_, tokens) if source in self.sinks:
                self.sinks.discard(source)
                self.prepared[source] = tokens
            case CutFailed(_, reason) if source in self.cuts | self.positions | self.sinks:
                return f"worker {source}: {reason}"
        return None

    def missing(self, ids: Iterable[int]) -> list[int]:
        """Return which of these workers still owe a report, sorted."""
        return sorted((self.cuts | self.positions | self.sinks).intersection(ids))

    def conclude(self, splits: Sequence[Split], first: int) -> CheckpointReady:
        """Return what the launcher must commit.

        `splits` are the splits that no source has reported; `first` is the lowest-numbered worker.
        """
        self.ready = True
        self.splits += splits
        assert len({each.number for each in self.splits}) == len(self.splits), "a split is in two places"
        assert len({each.number for each in self.partitions}) == len(self.partitions), "a partition is in two places"
        whole = tuple((name, tuple(sorted(self.whole[name]))) for name in sorted(self.whole))
        segments = tuple(sorted(self.segments, key=lambda each: each.name))
        left = tuple(sorted(self.splits, key=lambda each: each.number))
        untaken = tuple(sorted(self.untaken, key=lambda each: each.segment.worker))  # stable: keeps each source's order
        partitions = tuple(sorted(self.partitions, key=lambda each: -each.number))
        own = {worker for worker in self.prepared if self.prepared[worker]}
        tokens = self.tokens, tuple(sorted(own.union([first] if self.adopted else [])))
        return CheckpointReady(
            self.number, segments, whole, left, untaken, partitions, *tokens, lines=self.lines, left_out=self.left_out
        )

    def _check(self) -> None:
        assert self.is_reported or not self.ready


def name_of(asked: Asked) -> str | None:
    """Return the name that a client wants for its checkpoint; None if it gave none."""
    body = asked.request.body
    return body.name if isinstance(body, CheckpointJob) else None

"""A checkpoint that has begun and is neither committed nor given up: what has come of it, and who is waited for.

What sinks have prepared comes from workers, and from others that had left before. Of what a worker says again that was
to leave and has stayed, it commits its own; the first of all workers commits the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TypeAlias

from megaflow.control.checkpoint_messages import CheckpointReady, CutFailed, CutWritten, PositionsAt, TokensAt
from megaflow.control.coordinator.events import Asked
from megaflow.control.messages import CheckpointJob, Split
from megaflow.durable.commits import Portion, SinkToken, UntakenLines
from megaflow.durable.segments import SegmentRef
from megaflow.quick_dataclass import dataclass

Report: TypeAlias = CutWritten | CutFailed | PositionsAt | TokensAt


@dataclass(slots=True)
class UnderWay:
    """The one of this number. One writer: `Checkpoints`."""

    number: int
    epoch: int
    begun: float  # seconds
    last: bool
    asked: list[Asked]
    cuts: set[int]  # workers that have not written
    positions: set[int]  # workers whose sources have not said where they are
    sinks: set[int]  # workers whose sinks have not prepared
    tokens_left: list[SinkToken]  # of workers that had left when it began
    segments: list[SegmentRef] = field(default_factory=list)
    whole: dict[str, list[int]] = field(default_factory=dict)  # operator -> bins that were written whole
    splits: list[Split] = field(default_factory=list)
    portions: list[Portion] = field(default_factory=list)
    untaken: list[UntakenLines] = field(default_factory=list)
    prepared: dict[int, tuple[SinkToken, ...]] = field(default_factory=dict)  # worker -> its tokens, in order
    spark: tuple[tuple[str, int], ...] = ()  # query, newest batch that is in
    seconds: float = 0.0  # that the slowest worker spent
    ready: bool = False  # the launcher has it

    @property
    def is_reported(self) -> bool:
        """Whether nobody is waited for."""
        return not (self.cuts or self.positions or self.sinks)

    @property
    def adopted(self) -> tuple[SinkToken, ...]:
        """What workers have prepared that are not there to commit it."""
        own = {token for tokens in self.prepared.values() for token in tokens}
        return tuple(token for token in self.tokens_left if token not in own)

    @property
    def tokens(self) -> tuple[SinkToken, ...]:
        """What sinks have prepared, each worker's in its order, and first that of workers that have left."""
        return *self.adopted, *(token for worker in sorted(self.prepared) for token in self.prepared[worker])

    def learn(self, source: int, report: Report) -> str | None:
        """Take in a worker's report; return why the checkpoint fails, if it does."""
        match report:
            case CutWritten(_, segments, whole, seconds) if source in self.cuts:
                self.cuts.discard(source)
                self.segments += segments
                for operator, bins in whole:
                    self.whole.setdefault(operator, []).extend(bins)
                self.seconds = max(self.seconds, seconds)
            case PositionsAt(_, splits, untaken, portions) if source in self.positions:
                self.positions.discard(source)
                self.splits += splits
                self.portions += portions
                self.untaken += untaken
            case TokensAt(_, tokens) if source in self.sinks:
                self.sinks.discard(source)
                self.prepared[source] = tokens
            case CutFailed(_, reason) if source in self.cuts | self.positions | self.sinks:
                return f"worker {source}: {reason}"
        return None

    def missing(self, ids: Iterable[int]) -> list[int]:
        """Return who of these workers is waited for, sorted."""
        return sorted((self.cuts | self.positions | self.sinks).intersection(ids))

    def conclude(self, splits: Sequence[Split], first: int) -> CheckpointReady:
        """Return what the launcher is to commit; `splits`: those of which no source has reported; `first` worker."""
        self.ready = True
        self.splits += splits
        assert len({each.number for each in self.splits}) == len(self.splits), "a split is in two places"
        assert len({each.number for each in self.portions}) == len(self.portions), "a partition is in two places"
        whole = tuple((name, tuple(sorted(self.whole[name]))) for name in sorted(self.whole))
        segments = tuple(sorted(self.segments, key=lambda each: each.name))
        left = tuple(sorted(self.splits, key=lambda each: each.number))
        untaken = tuple(sorted(self.untaken, key=lambda each: each.segment.worker))  # each source's are in order
        portions = tuple(sorted(self.portions, key=lambda each: -each.number))
        own = {worker for worker in self.prepared if self.prepared[worker]}
        tokens = self.tokens, tuple(sorted(own.union([first] if self.adopted else [])))
        return CheckpointReady(self.number, segments, whole, left, untaken, portions, *tokens)

    def _check(self) -> None:
        assert self.is_reported or not self.ready


def name_of(asked: Asked) -> str | None:
    """Return the name that a checkpoint is to have for which a client has asked."""
    body = asked.request.body
    return body.name if isinstance(body, CheckpointJob) else None

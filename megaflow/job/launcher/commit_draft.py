"""A checkpoint on its way to its commit: what the launcher has heard of it, and what is missing still.

Decided by values alone. A checkpoint begins by `CheckpointBegun`. It can be committed when its segments and splits are
known and the output before its epoch is durable: by `CheckpointReady`, or, at the end of all lines, by the parts in the
`Ended` of all workers.
"""

from collections.abc import Iterable
from dataclasses import field

from megaflow.control.checkpoint_messages import CheckpointBegun, CheckpointReady, CutWritten, TokensAt
from megaflow.control.messages import Split
from megaflow.durable.commits import Commit, OperatorCut, OutputLength, needed
from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass


@dataclass(eq=False)
class CommitDraft:
    """What is known of the checkpoint that is under way. One writer: the launcher's loop."""

    begun: CheckpointBegun
    ready: CheckpointReady | None = None
    length: int | None = None  # of the outputs together, durable up to here
    parts: list[CutWritten] = field(default_factory=list)  # of workers that have ended
    prepared: list[TokensAt] = field(default_factory=list)  # by their sinks
    deadline: int | None = None  # microseconds, of what was closed because the job has ended; None: nothing was

    @property
    def is_complete(self) -> bool:
        """Whether it can be committed."""
        return self.ready is not None and self.length is not None

    def add(self, part: CutWritten | TokensAt) -> None:
        """Note a part of a worker that has ended."""
        if isinstance(part, TokensAt):
            self.prepared.append(part)
        else:
            self.parts.append(part)

    @property
    def _watermark(self) -> int | None:
        """The one that all before the checkpoint has seen. What the end has closed is not to open again."""
        return max((each for each in (self.begun.watermark, self.deadline) if each is not None), default=None)

    def end(self) -> None:
        """Note that the parts of all workers are there, and that nothing is left to be read."""
        segments = tuple(segment for part in self.parts for segment in part.segments)
        tokens = (*self.begun.tokens, *(token for each in self.prepared for token in each.tokens))
        whole = merged(part.whole for part in self.parts)
        self.ready = CheckpointReady(self.begun.checkpoint, segments, whole, (), tokens=tokens)

    def commit(
        self, latest: Commit, outputs: tuple[OutputLength, ...], written_at: float
    ) -> tuple[Commit, tuple[Split, ...]]:
        """Return the commit, but for its splits, and what is left of these. `latest` is the newest commit.

        Raises ProtocolError if it does not follow that one.
        """
        begun, ready = self.begun, self.ready
        assert ready is not None, "the checkpoint is not complete"
        if begun.since not in (None, latest.checkpoint) or begun.checkpoint <= latest.checkpoint:
            raise ProtocolError(
                f"checkpoint {begun.checkpoint} follows checkpoint {begun.since}, but the last one that is committed "
                f"is {latest.checkpoint}"
            )
        before = {each.name: each.bases for each in latest.operators if begun.since is not None}
        operators = []
        whole = {name: frozenset(bins) for name, bins in ready.whole}
        for each in begun.operators:
            bases = before.get(each.name, (None,) * each.bins)
            written = whole.get(each.name, frozenset())
            now = (begun.checkpoint if bin in written else base for bin, base in enumerate(bases))
            operators.append(OperatorCut(each.name, each.kind, tuple(now), each.version, each.form))
        names = {*begun.sinks, *(each.name for each in begun.operators)}
        before_names = {*(each.name for each in latest.operators), *(each.sink for each in latest.tokens)}
        gone = before_names.union(latest.dropped) - names
        segments = (*(latest.segments if begun.since is not None else ()), *ready.segments)
        left = {portion.number for portion in ready.portions}
        finished = tuple(portion for portion in begun.known if portion.number not in left)
        commit = Commit(
            number=latest.number, checkpoint=begun.checkpoint, time=begun.epoch, incarnation=latest.incarnation,
            app=latest.app, written_at=written_at, next_worker=begun.next_worker, operators=tuple(operators),
            segments=needed(operators, segments), outputs=outputs,
            spark=tuple(sorted((dict(latest.spark) | dict(begun.spark)).items())), untaken=ready.untaken,
            table=begun.table, ended=begun.at_end, dropped=tuple(sorted(gone)), code=begun.code,
            portions=ready.portions, finished=finished, tokens=ready.tokens,
            watermark=self._watermark, clock=begun.clock, sources=begun.sources, members=begun.members,
            bound=ready.bound,
        )  # fmt: skip
        return commit, ready.splits


def merged(whole: Iterable[Iterable[tuple[str, tuple[int, ...]]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the bins that workers wrote whole, by operator.

    >>> merged([[("count", (0, 2))], [("count", (1,)), ("sum", (3,))]])
    (('count', (0, 1, 2)), ('sum', (3,)))
    """
    bins: dict[str, list[int]] = {}
    for part in whole:
        for name, some in part:
            bins.setdefault(name, []).extend(some)
    return tuple((name, tuple(sorted(some))) for name, some in sorted(bins.items()))

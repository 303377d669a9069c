"""What a status of the job shows: what its workers have answered, and what the coordinator knows by itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from megaflow.control.coordinator.checkpoints import Checkpoints
from megaflow.control.coordinator.joins import Joins
from megaflow.control.coordinator.membership_requests import MembershipRequests
from megaflow.control.coordinator.questions import Question
from megaflow.control.coordinator.reconfigurations import Reconfigurations
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.watermarks import Watermarks
from megaflow.control.messages import StatusAnswer, StatusQuery
from megaflow.control.reports import KEYS_REPORTED_MAX, JobStatus, OperatorLoad, OperatorStatus, PendingMove
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The parts of a controller that know how the job stands."""

    job: str  # its name
    operators: Mapping[str, int]  # stateful ones: name -> number of bins
    roster: Roster
    moves: Reconfigurations
    changes: MembershipRequests
    joins: Joins
    checkpoints: Checkpoints
    watermarks: Watermarks

    def status(
        self, question: Question[Any], query: StatusQuery, state: str, epoch: int, frontier: int | None, now: float
    ) -> JobStatus:
        """Return the status that was asked for, from the answers to a question."""
        table = self.moves.table
        answers = [question.answers[id] for id in self.roster.members.ids if id in question.answers]
        return JobStatus(
            self.job, state, epoch, frontier,
            workers=tuple(replace(each.status, state=self.roster.state_of(each.status.id)) for each in answers),
            operators=operator_statuses(answers, self.operators, table if query.bins else None),
            pending=tuple(PendingMove(each.epoch, each.bins) for each in self.moves),
            plan=self.moves.plans.status(table), changes=self.changes.statuses(), ledger=tuple(self.moves.ledger),
            joining=self.joins.statuses(now), silent=tuple(sorted(question.silent)),
            checkpoint=self.checkpoints.status(now), watermark=self.watermarks.status(now),
        )  # fmt: skip


def operator_statuses(
    answers: Iterable[StatusAnswer], operators: Mapping[str, int], table: Sequence[int] | None
) -> tuple[OperatorStatus, ...]:
    """Return what a status shows of each operator (name -> number of bins); without a table if that is None."""
    parts: dict[str, list[OperatorLoad]] = {}
    for load in (load for answer in answers for load in answer.loads):
        parts.setdefault(load.operator, []).append(load)
    owners = None if table is None else tuple(table)
    return tuple(
        OperatorStatus(name, bins, owners, merged_load(parts[name]) if name in parts else None)
        for name, bins in operators.items()
    )


def merged_load(parts: Sequence[OperatorLoad]) -> OperatorLoad:
    """Return the load of one operator on all workers: bins by the time they take, keys by what is certain of them."""
    bins: dict[int, list[float]] = {}  # bin -> [records, busy ms, keys, bytes]
    hot: dict[tuple[str, int], list[float]] = {}  # (key, bin) -> [records, error]
    for part in parts:
        rows = zip(part.records_per_second, part.busy_ms_per_second, part.keys, part.bytes)
        for bin, row in zip(part.bins, rows):
            bins[bin] = [sum(pair) for pair in zip(bins.get(bin, (0.0, 0.0, 0, 0)), row)]
        for key, bin, records, error in part.hot_keys:
            before = hot.get((key, bin), (0.0, 0.0))
            hot[key, bin] = [before[0] + records, before[1] + error]
    busiest = sorted(bins.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))
    surest = sorted(hot.items(), key=lambda each: each[1][1] - each[1][0])[:KEYS_REPORTED_MAX]
    return OperatorLoad(
        parts[0].operator,
        tuple(bin for bin, _ in busiest),
        tuple(row[0] for _, row in busiest),
        tuple(row[1] for _, row in busiest),
        tuple(int(row[2]) for _, row in busiest),
        tuple(int(row[3]) for _, row in busiest),
        tuple((key, bin, records, error) for (key, bin), (records, error) in surest),
    )

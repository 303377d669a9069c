"""The plan in progress and its runner, or the rest of a plan without one.

A client runs a plan: it announces the table that the plan leads to, then requests one step after another. The rest of
a plan needs no records, because it is the difference between the present table and the wanted one. So a runner that
dies in the middle leaves nothing wrong behind.

    begun ── steps of its runner ──▶ over, when the table is the wanted one. If a process must then leave, its removal
      │ ▲                            must also have begun, which continues by itself
      │ └ `ResumePlan`, or a step or `RenewPlan` with the plan's number
      ▼
    left, when the runner has closed its connection or has been silent for LEASE_SECONDS. A plan that is left is also
    over when another one begins

1. While a plan has a runner, no other client changes owners. Two plans at a time would undo each other's moves.
2. A plan begins only on the table from which it was made. Steps made from another table lead to another result.
3. The plan is kept as one frozen value, from which a coordinator that takes over continues. The next step with the
   plan's number tells it which client is the runner.
4. A runner that is suspended, or whose machine is lost, keeps its connection. So it holds the plan on lease. Each step
   renews the lease, and `RenewPlan` renews it between steps. While a step is under way, the runner waits for its
   answer, and the lease does not expire.
5. The number is a fencing token. A runner that resumes a plan gives it a new number, and so does any other client that
   changes owners while the plan is left. If neither has happened, a runner that wakes up continues. Otherwise its steps
   are refused, because they were made for a table that no longer exists. That holds even if its successor has also
   gone.
"""

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.messages import RUNNER_LENGTH_MAX, BeginPlan, KeptPlan, Reconfigure, RenewPlan
from megaflow.control.reports import PlanStatus
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import Map, RoutingTable, difference

LEASE_SECONDS = 10.0  # time for three renewals


class Plans:
    """The last plan of a job. One writer: the controller."""

    def __init__(self, kept: KeptPlan | None = None) -> None:
        """`kept` is the plan of the previous coordinator."""
        self.kept = kept
        self.runner: Hashable = None  # the client that makes the steps; None: no client does
        self._heard: float | None = None  # seconds, when the runner last acted; None: since the last `expire`

    def check_free(self, client: Hashable) -> None:
        """Raise CommandRefused if another client is running a plan."""
        if self.kept is not None and self.runner not in (None, client):
            plan = f"plan {self.kept.number}, {self.kept.strategy}, of {self.kept.runner}"
            raise CommandRefused(f"{plan}, is being carried out: wait until it ends (see megaflow control status)")

    def check_step(self, client: Hashable, number: int | None) -> None:
        """Raise CommandRefused unless this client may change owners now, with a step of this plan or without a plan."""
        self.check_free(client)
        if number is not None and (self.kept is None or self.kept.number != number or self.kept.over):
            since = "another command has since started a plan, resumed this one or moved bins"
            raise CommandRefused(f"plan {number!r:.50} has ended, or {since}: no bin was moved")

    def leads_to(self, body: object, changes: Iterable[tuple[int, int, int]]) -> bool:
        """Tell whether these changes (bin, from, to) are a step of the plan and lead only where the plan leads."""
        kept = self.kept
        of_plan = isinstance(body, Reconfigure) and body.plan is not None and kept is not None
        return of_plan and kept is not None and all(kept.target[bin] == target for bin, _, target in changes)

    def check(self, asked: Asked, table: RoutingTable, roster: Roster) -> KeptPlan:
        """Return the plan that a request begins or resumes. Raises CommandRefused if that is not possible."""
        body, kept = asked.request.body, self.kept
        if isinstance(body, BeginPlan):
            roster.check_commands([Map(body.target)], len(table))
            if body.removes is not None:
                roster.process_of(body.removes)
            return self.begun(asked.client, body, table)
        if kept is not None and not kept.over:
            roster.check_commands([Map(kept.target)], len(table))
        return self.resumed(asked.client, body.runner)

    def begun(self, client: Hashable, plan: BeginPlan, table: RoutingTable) -> KeptPlan:
        """Return a plan whose target is a valid table. Raises CommandRefused if it may not begin."""
        self.check_free(client)
        if plan.table != table:
            raise CommandRefused("bins have moved since the plan was made, so it was not started: make a new plan")
        bins = len(difference(table, plan.target))
        if not bins:
            raise CommandRefused("the plan moves no bin: every bin is already where it should be")
        self._check_words(plan)
        number = 0 if self.kept is None else self.kept.number + 1
        words = plan.strategy, plan.batch, plan.gap_seconds
        return KeptPlan(number, plan.target, *words, bins, plan.runner, removes=plan.removes)

    def resumed(self, client: Hashable, runner: str) -> KeptPlan:
        """Return the plan that is left, as this client continues it. Raises CommandRefused if there is none."""
        self.check_free(client)
        if self.kept is None or self.kept.over:
            raise CommandRefused("there is no plan to resume: " + (
                "no plan was started" if self.kept is None else "the last plan has ended"))  # fmt: skip
        self._check_runner(runner)
        return replace(self.kept, number=self.kept.number + 1, runner=runner)

    def renew(self, asked: Asked) -> Reply:
        """Renew the runner's lease; return the answer. Raises CommandRefused if the client is no longer the runner."""
        body: RenewPlan = asked.request.body
        self.check_step(asked.client, body.number)
        assert self.kept is not None
        self.keep(self.kept, asked.client)
        return asked.done(None)

    def keep(self, kept: KeptPlan, runner: Hashable) -> KeptPlan:
        """Keep this plan, with a new lease of its runner; return it."""
        self.kept, self.runner, self._heard = kept, runner, None
        return kept

    def stepped(self, client: Hashable, number: int | None, table: RoutingTable) -> None:
        """Record that owners have changed, by a step of plan `number` or without one; `table`: after the change."""
        if self.kept is None or self.kept.over:
            return
        over = table == self.kept.target and self.kept.removes is None
        if number is not None:
            self.keep(replace(self.kept, over=over), None if over else client)
        elif self.runner is None:
            self.keep(replace(self.kept, number=self.kept.number + 1, over=over), None)

    def removed(self, ids: tuple[int, ...], table: RoutingTable) -> None:
        """Record that the removal of these workers' process has begun."""
        if self.kept is not None and self.kept.removes in ids and table == self.kept.target:
            self.keep(replace(self.kept, over=True), None)

    def expire(self, busy: Collection[Hashable], now: float) -> None:
        """Forget the runner if its lease has expired. Clients that are `busy` wait for an answer and keep it."""
        if self._heard is None or self.runner in busy:
            self._heard = now
        elif now - self._heard >= LEASE_SECONDS:
            self.runner = None

    def gone(self, client: Hashable) -> None:
        """Record that a client has disconnected."""
        if self.runner == client:
            self.runner = None

    def binds(self, ids: tuple[int, ...]) -> str | None:
        """Return why these workers will still receive bins; None if they will not."""
        if self.kept is not None and self.runner is not None:
            if named := set(ids).intersection(self.kept.target):
                return f"plan {self.kept.number} gives bins to worker {min(named)}: wait until the plan ends"
        return None

    def status(self, table: RoutingTable) -> PlanStatus | None:
        """Return the status of a plan that is not over; None if there is none."""
        kept = self.kept
        if kept is None or kept.over:
            return None
        left = len(difference(table, kept.target))
        return PlanStatus(
            kept.number, kept.strategy, kept.batch, kept.gap_seconds, kept.bins, left, kept.runner,
            running=self.runner is not None, removes=kept.removes,
        )  # fmt: skip

    def _check_words(self, plan: BeginPlan) -> None:
        if not isinstance(plan.strategy, str) or len(plan.strategy) > RUNNER_LENGTH_MAX:
            raise CommandRefused(f"{plan.strategy!r:.50} is not the name of a strategy")
        if plan.batch is not None and (type(plan.batch) is not int or plan.batch < 1):
            raise CommandRefused(f"{plan.batch!r:.50} bins per step: it must be at least one")
        if type(plan.gap_seconds) not in (int, float) or not 0 <= plan.gap_seconds < math.inf:
            raise CommandRefused(f"a gap of {plan.gap_seconds!r:.50} seconds: it must be 0 or more")
        self._check_runner(plan.runner)

    def _check_runner(self, runner: object) -> None:
        if not isinstance(runner, str) or len(runner) > RUNNER_LENGTH_MAX:
            raise CommandRefused(
                f"{runner!r:.50} cannot be a runner's name: give at most {RUNNER_LENGTH_MAX} characters"
            )

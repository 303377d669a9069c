"""Which plan is being carried out, by whom, and what is left of the one whose runner has gone.

A plan is run by a client: it announces where the plan leads, then asks for one step after another. What is left needs
no books, it is the difference between the table and the one that is wanted; so whoever dies in the middle leaves
nothing behind that is wrong.

    begun ── steps of its runner ──▶ over, when the table is as wanted, and, if a process is to leave then, its removal
      │ ▲                            has begun, which goes on by itself
      │ └ `ResumePlan`, or a step or `RenewPlan` with the plan's number
      ▼
    left, when the runner has closed its connection or was not heard of for LEASE_SECONDS; over, too, when another plan
    is begun

1. While a plan has a runner nobody else changes owners: two plans at a time would undo each other's moves.
2. A plan is begun only on the table that it was made from: steps made from another one lead to another table.
3. What is kept is one frozen value. A coordinator that takes over goes on from it; to that one, too, a step with the
   plan's number says who runs it.
4. A runner that is suspended, or whose machine is gone, keeps its connection. So it has the plan on lease: each step,
   and between two of them `RenewPlan`, renews it, and while a step is under way it is the runner that waits.
5. The number is a fencing token. Whoever takes a plan up gives it a new one, and so does anybody else who changes
   owners while it is left. A runner that wakes up goes on if nobody did; else its steps, made for a table that is gone,
   are refused, also when the one after it has gone, too.
"""

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

from megaflow.control.coordinator.events import Asked, Reply
from megaflow.control.coordinator.request_progress import done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.messages import RUNNER_LENGTH_MAX, BeginPlan, KeptPlan, Reconfigure, RenewPlan, ResumePlan
from megaflow.control.reports import PlanStatus
from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import Map, RoutingTable, difference

LEASE_SECONDS = 10.0  # three renewals


class Plans:
    """The last plan of a job. One writer: the controller."""

    def __init__(self, kept: KeptPlan | None = None) -> None:
        """`kept` is what another coordinator has kept."""
        self.kept = kept
        self._runner: Hashable = None  # the client that makes the steps; None: nobody does
        self._heard: float | None = None  # when it was heard of, seconds; None: since the last `expire`

    def check_free(self, client: Hashable) -> None:
        """Raise CommandRefused if another client is running a plan."""
        if self.kept is not None and self._runner not in (None, client):
            plan = f"plan {self.kept.number}, {self.kept.strategy}, of {self.kept.runner}"
            raise CommandRefused(f"{plan}, is being carried out: wait until it ends (see megaflow control status)")

    def check_step(self, client: Hashable, number: int | None) -> None:
        """Raise CommandRefused unless this client may change owners now, by a step of the plan with this number."""
        self.check_free(client)
        if number is not None and (self.kept is None or self.kept.number != number or self.kept.over):
            since = "another command has since started a plan, resumed this one or moved bins"
            raise CommandRefused(f"plan {number!r:.50} has ended, or {since}: no bin was moved")

    def leads_to(self, body: object, changes: Iterable[tuple[int, int, int]]) -> bool:
        """Tell whether these changes (bin, from, to) are a step of the plan, and each is one that the plan makes."""
        kept = self.kept
        of_plan = isinstance(body, Reconfigure) and body.plan is not None and kept is not None
        return of_plan and kept is not None and all(kept.target[bin] == target for bin, _, target in changes)

    def check(self, asked: Asked, table: RoutingTable, roster: Roster) -> RoutingTable:
        """Return the table to which a plan leads that is to be begun or resumed. Raises CommandRefused if none may."""
        match asked.request.body:
            case BeginPlan(target=target) as plan:
                roster.check_commands([Map(target)], len(table))
                if plan.removes is not None:
                    roster.process_of(plan.removes)
                self._check_begin(asked.client, plan, table)
                return target
            case ResumePlan(runner):
                if self.kept is not None and not self.kept.over:
                    roster.check_commands([Map(self.kept.target)], len(table))
                return self._check_resume(asked.client, runner).target
            case body:
                raise AssertionError(f"{body!r:.100} does not concern a plan")

    def answer(self, asked: Asked, table: RoutingTable, roster: Roster) -> KeptPlan:
        """Begin a plan or go on with one, as is asked for. Raises CommandRefused with the reason if that cannot be."""
        self.check(asked, table, roster)
        body = asked.request.body
        if isinstance(body, BeginPlan):
            return self.begin(asked.client, body, table)
        return self.resume(asked.client, body.runner)

    def _check_begin(self, client: Hashable, plan: BeginPlan, table: RoutingTable) -> int:
        """Return how many bins the plan moves, if it may begin."""
        self.check_free(client)
        if plan.table != table:
            raise CommandRefused("bins have moved since the plan was made, so it was not started: make a new plan")
        bins = len(difference(table, plan.target))
        if not bins:
            raise CommandRefused("the plan moves no bin: every bin is already where it should be")
        self._check_words(plan)
        return bins

    def begin(self, client: Hashable, plan: BeginPlan, table: RoutingTable) -> KeptPlan:
        """Keep a plan whose target is a valid table. Raises CommandRefused if it may not begin."""
        bins = self._check_begin(client, plan, table)
        number = 0 if self.kept is None else self.kept.number + 1
        words = plan.strategy, plan.batch, plan.gap_seconds
        return self._keep(KeptPlan(number, plan.target, *words, bins, plan.runner, removes=plan.removes), client)

    def resume(self, client: Hashable, runner: str) -> KeptPlan:
        """Let a client go on with the plan that is left. Raises CommandRefused if there is none."""
        kept = self._check_resume(client, runner)
        return self._keep(replace(kept, number=kept.number + 1, runner=runner), client)

    def renew(self, asked: Asked) -> Reply:
        """Note that the runner is there; return the answer. Raises CommandRefused if it is the runner no more."""
        body: RenewPlan = asked.request.body
        self.check_step(asked.client, body.number)
        assert self.kept is not None
        self._keep(self.kept, asked.client)
        return done(asked, None)

    def _keep(self, kept: KeptPlan, runner: Hashable) -> KeptPlan:
        self.kept, self._runner, self._heard = kept, runner, None
        return kept

    def _check_resume(self, client: Hashable, runner: str) -> KeptPlan:
        self.check_free(client)
        if self.kept is None or self.kept.over:
            raise CommandRefused("there is no plan to resume: " + (
                "no plan was started" if self.kept is None else "the last plan has ended"))  # fmt: skip
        self._check_runner(runner)
        return self.kept

    def stepped(self, client: Hashable, number: int | None, table: RoutingTable) -> None:
        """Note that a step was made; `table` is the one after it."""
        if self.kept is None or self.kept.over:
            return
        over = table == self.kept.target and self.kept.removes is None
        if number is not None:
            self._keep(replace(self.kept, over=over), None if over else client)
        elif self._runner is None:
            self._keep(replace(self.kept, number=self.kept.number + 1, over=over), None)

    def removed(self, ids: tuple[int, ...], table: RoutingTable) -> None:
        """Note that the removal of these workers' process has begun."""
        if self.kept is not None and self.kept.removes in ids and table == self.kept.target:
            self._keep(replace(self.kept, over=True), None)

    def expire(self, busy: Collection[Hashable], now: float) -> None:
        """Forget a runner whose lease has ended; clients that are `busy` wait for an answer."""
        if self._heard is None or self._runner in busy:
            self._heard = now
        elif now - self._heard >= LEASE_SECONDS:
            self._runner = None

    def gone(self, client: Hashable) -> None:
        """Note that a client has gone."""
        if self._runner == client:
            self._runner = None

    def binds(self, ids: tuple[int, ...]) -> str | None:
        """Return why these workers are still to own bins; None if they are not."""
        if self.kept is not None and self._runner is not None:
            if named := set(ids).intersection(self.kept.target):
                return f"plan {self.kept.number} gives bins to worker {min(named)}: wait until the plan ends"
        return None

    def status(self, table: RoutingTable) -> PlanStatus | None:
        """Return what a status shows of a plan that is not over; None if there is none."""
        kept = self.kept
        if kept is None or kept.over:
            return None
        left = len(difference(table, kept.target))
        return PlanStatus(
            kept.number, kept.strategy, kept.batch, kept.gap_seconds, kept.bins, left, kept.runner,
            running=self._runner is not None, removes=kept.removes,
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

"""Requests that move bins, from their arrival to their start: a trial first checks that the bins can travel.

A state that cannot travel would end the job when its bin moves, and be lost. So there is a trial before a plan begins
or resumes, and before owners change without a plan. The owners of the bins try to encode their contents
(`megaphone.base.bin_trial`), and the new owners report whether they know the classes in them. Only then is the request
carried out:

    asked ─ checked ─▶ the owners try ─ all have ─▶ the new owners confirm ─ all have ─▶ checked again, carried out
                        └ one finds what cannot travel, or one does not know a class ─▶ refused, nothing has changed

1. A request is checked as a whole before its trial, so an invalid one is refused at once. It is checked again after the
   trial, because bins may have moved, workers may have left, and the job may be ending. A client that adds processes
   before it moves bins to them requests the trial first, by `TryBins`.
2. A step of a plan needs no trial if it leads where the plan leads, because the plan's bins were tried when it began.
3. During its trial a request has changed nothing and has not been answered. So it is dropped if its client disconnects,
   which is how a command's timeout ends it. On a hand-over, its client repeats it at the successor. Answers name the
   coordinator that asked, because answers to the previous one may still arrive.
4. A trial does not wait for a worker that leaves, because that worker owns no bins. A lost worker ends the job.
5. A trial examines one moment. A state that becomes unable to travel later ends the job when its bin moves, with an
   error that names operator, key, type and state.
"""

from collections.abc import Hashable
from typing import Final, TypeAlias

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Mail
from megaflow.control.coordinator.base.questions import Question, Questions
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.moves.reconfigurations import Reconfigurations
from megaflow.control.messages import Reconfigure, TrialAnswer, TrialAsk, TryBins
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import apply, difference
from megaflow.timely.order import grouped

TRIALS_MAX: Final = 100  # under way


Trial: TypeAlias = tuple[Asked, set[int]]
"""A request whose bins are being tried; the new owners that must still be asked whether they know the classes."""


class Trials:
    """The requests that move bins. One writer: the controller."""

    def __init__(self, job: str, roster: Roster, moves: Reconfigurations, stream: CommandStream) -> None:
        self._job = job
        self._roster = roster
        self._moves = moves
        self._stream = stream
        self._questions: Questions[Trial] = Questions()  # their answers are the classes found

    @property
    def asked(self) -> list[Asked]:
        """The requests under way."""
        return [question.about[0] for question in self._questions.open.values()]

    def ask(self, asked: Asked, tried: bool, now: float) -> None:
        """Start the trial of a request; carry the request out if it was `tried` or needs no trial.

        Raises CommandRefused.
        """
        changes = self._changes(asked)
        if tried or not changes or self._moves.plans.leads_to(asked.request.body, changes):
            self._carry_out(asked, now)
            return
        if len(self._questions.open) >= TRIALS_MAX:
            raise CommandRefused(f"{TRIALS_MAX} requests already wait for a trial of their bins; try again later")
        bins = grouped((source, bin) for bin, source, _ in changes)
        id = self._questions.begin((asked, {target for _, _, target in changes}), bins)
        for source in sorted(bins):
            question = TrialAsk(self._roster.members.coordinator, id, tuple(bins[source]))
            self._stream.out.append(Mail(source, question))

    def _changes(self, asked: Asked) -> list[tuple[int, int, int]]:
        """Return (bin, from, to) of each bin that a request moves. Raises CommandRefused if it is invalid now."""
        body, table = asked.request.body, self._moves.table
        if not table:
            raise CommandRefused(f"job {self._job!r} has no stateful operator, so there are no bins to move")
        match body:
            case TryBins(bins):
                if type(bins) is not tuple or any(type(bin) is not int or not 0 <= bin < len(table) for bin in bins):
                    raise CommandRefused(f"{bins!r:.80}: the bins are 0 to {len(table) - 1}")
                return [(bin, table[bin], table[bin]) for bin in bins]
            case Reconfigure(commands):
                self._moves.check(asked, body)
                self._roster.check_commands(commands, len(table))
                return difference(table, apply(table, commands))
            case _:
                return difference(table, self._moves.plans.check(asked, table, self._roster).target)

    def _carry_out(self, asked: Asked, now: float) -> None:
        body = asked.request.body
        if isinstance(body, Reconfigure):
            epoch = self._stream.issue(*body.commands)
            self._stream.out.append(self._moves.add(asked, body.commands, epoch, now, body.plan))
        elif isinstance(body, TryBins):
            self._stream.out.append(asked.done(None))
        else:
            plans = self._moves.plans
            plan = plans.keep(plans.check(asked, self._moves.table, self._roster), asked.client)
            self._stream.out.append(asked.done(plan))

    def answered(self, source: int, answer: TrialAnswer) -> list[Asked]:
        """Record a worker's answer; return the request if it may now be carried out."""
        question = self._questions.open.get(answer.id)
        if question is None or answer.by != self._roster.members.coordinator or source not in question.silent:
            return []
        if answer.fault is not None:
            del self._questions.open[answer.id]
            reason = f"no bin was moved: worker {source} reports: {answer.fault}"
            self._stream.out.append(question.about[0].refused(reason))
            return []
        is_complete = self._questions.answered(answer.id, source, answer.classes) is not None
        return self._go_on(question) if is_complete else []

    def left(self, ids: tuple[int, ...]) -> list[Asked]:
        """Stop waiting for these workers; return the requests that may be carried out without them."""
        return [asked for question in self._questions.left(ids) for asked in self._go_on(question)]

    def _go_on(self, question: Question[Trial]) -> list[Asked]:
        asked, targets = question.about
        targets &= self._roster.members.workers  # the others have left
        classes = set().union(*question.answers.values())
        if not (classes and targets):
            return [asked]
        id = self._questions.begin((asked, set()), targets)
        ask = TrialAsk(self._roster.members.coordinator, id, (), tuple(sorted(classes)))
        self._stream.out += [Mail(target, ask) for target in sorted(targets)]
        return []

    def gone(self, client: Hashable) -> None:
        """Drop the requests of a client that has disconnected: it could not receive the answer."""
        self._questions.take(lambda question: question.about[0].client == client)

    def cancel(self, reason: str) -> None:
        """Refuse all requests under way."""
        self._stream.out += [asked.refused(reason) for asked in self.asked]
        self._questions.open.clear()

"""Requests that move bins, from the question to their begin: what the bins hold is tried first.

A state that cannot travel would end the job when its bin moves, and be lost. So before a plan is begun or resumed, or
owners are changed without a plan, the owners of the bins try what is in them (`megaphone.bin_trial`), and the new
owners say whether they know the classes that it consists of. Only then the request is what it would have been at once:

    asked ─ checked ─▶ the owners try ─ all have ─▶ the new owners confirm ─ all have ─▶ checked again, carried out
                        └ one finds what cannot travel, or one does not know a class ─▶ refused, nothing has changed

1. A request is checked as a whole before its trial, to refuse at once what is wrong in itself, and again after it:
   bins may have moved, workers may have gone, and the job may be ending. A client that will add processes before it
   moves bins to them has the bins tried first, by `TryBins`.
2. A step of a plan is not tried again if it goes where the plan leads: what the plan moves was tried when it was begun.
3. While it is tried a request has changed nothing and has been answered nothing. So it is dropped when its client goes,
   which is how a command's timeout ends it, and a coordinator that hands over passes it on to be asked again. Answers
   name the coordinator that has asked, since those to the one before may still come.
4. Whoever leaves is not waited for: it owns no bins. A lost worker ends the job.
5. A trial looks at a moment. What becomes untravellable after it ends the job as its bin moves, naming operator, key,
   type and state.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import field
from typing import Any, Final

from megaflow.control.coordinator.events import Asked, Instruction, Mail, Reply
from megaflow.control.coordinator.reconfigurations import Reconfigurations
from megaflow.control.coordinator.request_progress import done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.messages import Reconfigure, Refused, TrialAnswer, TrialAsk, TryBins
from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import apply, difference
from megaflow.quick_dataclass import dataclass

TRIALS_MAX: Final = 100  # under way


@dataclass(slots=True)
class Trial:
    """A request whose bins are being tried."""

    asked: Asked
    silent: set[int]  # workers that have not answered what they were asked last
    targets: set[int]  # that are still to be asked whether they know the classes
    classes: set[tuple[int, str, str]] = field(default_factory=set)  # that the owners have met


class Trials:
    """The requests that move bins. One writer: the controller."""

    def __init__(
        self,
        job: str,
        roster: Roster,
        moves: Reconfigurations,
        issue: Callable[[Iterable[Any], list[Instruction], float], int],
    ) -> None:
        """`issue` puts commands on the stream and returns their epoch."""
        self._job = job
        self._roster = roster
        self._moves = moves
        self._issue = issue
        self._open: dict[int, Trial] = {}  # id of TrialAsk -> request
        self._next = 0  # id

    @property
    def asked(self) -> list[Asked]:
        """The requests under way."""
        return [trial.asked for trial in self._open.values()]

    def ask(self, asked: Asked, tried: bool, out: list[Instruction], now: float) -> None:
        """Have tried what a request moves; carry it out if that was done or need not be. Raises CommandRefused."""
        changes = self._changes(asked)
        if tried or not changes or self._moves.plans.leads_to(asked.request.body, changes):
            self._carry_out(asked, out, now)
            return
        if len(self._open) >= TRIALS_MAX:
            raise CommandRefused(f"{TRIALS_MAX} requests already wait for a trial of their bins; try again later")
        bins: dict[int, list[int]] = {}
        for bin, source, _ in changes:
            bins.setdefault(source, []).append(bin)
        self._open[self._next] = Trial(asked, set(bins), {target for _, _, target in changes})
        for source in sorted(bins):
            out.append(Mail(source, TrialAsk(self._roster.members.coordinator, self._next, tuple(bins[source]))))
        self._next += 1

    def _changes(self, asked: Asked) -> list[tuple[int, int, int]]:
        """Return (bin, from, to) of what a request moves. Raises CommandRefused if it may not be carried out now."""
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
                return difference(table, self._moves.plans.check(asked, table, self._roster))

    def _carry_out(self, asked: Asked, out: list[Instruction], now: float) -> None:
        body = asked.request.body
        if isinstance(body, Reconfigure):
            epoch = self._issue(body.commands, out, now)
            out.append(self._moves.add(asked, body.commands, epoch, now, body.plan))
        elif isinstance(body, TryBins):
            out.append(done(asked, None))
        else:
            out.append(done(asked, self._moves.plans.answer(asked, self._moves.table, self._roster)))

    def answered(self, source: int, answer: TrialAnswer, out: list[Instruction]) -> list[Asked]:
        """Take a worker's answer; return the request that may be carried out by now, if one may."""
        trial = self._open.get(answer.id)
        if trial is None or answer.by != self._roster.members.coordinator or source not in trial.silent:
            return []
        if answer.fault is not None:
            del self._open[answer.id]
            reason = f"no bin was moved: worker {source} reports: {answer.fault}"
            out.append(Reply(trial.asked.client, Refused(trial.asked.request.id, reason)))
            return []
        trial.classes.update(answer.classes)
        trial.silent.discard(source)
        return self._go_on(answer.id, out)

    def left(self, ids: tuple[int, ...], out: list[Instruction]) -> list[Asked]:
        """Wait for these workers no longer; return the requests that may be carried out without them."""
        ready: list[Asked] = []
        for id, trial in list(self._open.items()):
            trial.silent.difference_update(ids)
            trial.targets.difference_update(ids)
            ready += self._go_on(id, out)
        return ready

    def _go_on(self, id: int, out: list[Instruction]) -> list[Asked]:
        trial = self._open[id]
        if trial.silent:
            return []
        if trial.classes and trial.targets:
            trial.silent, trial.targets = trial.targets, set()
            question = TrialAsk(self._roster.members.coordinator, id, (), tuple(sorted(trial.classes)))
            out += [Mail(target, question) for target in sorted(trial.silent)]
            return []
        del self._open[id]
        return [trial.asked]

    def gone(self, client: Hashable) -> None:
        """Drop what a client has asked for that has gone: nobody would hear that it is done."""
        self._open = {id: trial for id, trial in self._open.items() if trial.asked.client != client}

    def cancel(self, reason: str, out: list[Instruction]) -> None:
        """Refuse all."""
        out += [Reply(asked.client, Refused(asked.request.id, reason)) for asked in self.asked]
        self._open.clear()

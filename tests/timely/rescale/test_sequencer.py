"""Transcripts of the coordinator: its input, then after `----` everything that it sends.

A transcript is a list of blocks of lines, separated by empty lines. The lines of a block are:
- `cluster(PROCESSES, WORKERS)` starts anew with that many processes of that many workers each;
- `at WORKER` sets the worker that receives the following lines, at first worker 0;
- `reach STAGE` takes a change to that stage, without output;
- `TIME WORKER MESSAGE`, `TIME tick`, `TIME give up REASON`, `TIME hand over LUGGAGE`, and, for the program above, `TIME
  supervise` and `TIME rule WORKERS REASON` are input, and their answers follow;
- `#` begins a comment.
`MEGAFLOW_REWRITE=1` writes the present answers into the files. Check the difference before you trust it.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import MegaflowError
from megaflow.timely.membership import founding
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.change_stages import Mail
from megaflow.timely.rescale.handover import Role
from megaflow.timely.rescale.messages import JoinAsk, LeaveAsk, Process
from megaflow.timely.rescale.sequencer import Sequencer

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"

NAMES = {name: value for name, value in vars(messages).items() if isinstance(value, type)}


def join(key: int, workers: int = 1, server: int | None = None, port: int | None = None) -> JoinAsk:
    """A request that reached worker 0; the process listens on its own port."""
    return JoinAsk(key, "h", 50 + key if port is None else port, workers, server, via=0)


def leave(worker: int) -> LeaveAsk:
    """A request from the worker itself."""
    return LeaveAsk(worker, worker)


def cluster(processes: int, each: int = 1) -> Sequencer:
    """Return the coordinator of a new cluster."""
    places: dict[int, Process] = {
        number: ("h", number, tuple(range(number * each, (number + 1) * each))) for number in range(processes)
    }
    members = founding(range(processes * each))
    return Sequencer(members, places, ((0, members),))


def said(mail: Mail) -> list[str]:
    """Return one line for each message; one for several consecutive workers is written once."""
    lines: list[tuple[str, str]] = []
    for worker, message in mail:
        text = words(message)
        if lines and lines[-1][1] == text:
            lines[-1] = f"{lines[-1][0]},{worker}", text
        else:
            lines.append((str(worker), text))
    return [f"{to} {text}" for to, text in lines]


def words(message: Any) -> str:
    """Return a message with shortened memberships and foundings."""
    match message:
        case messages.Answer(key, messages.Admission() as a):
            founds = {first: members.ids for first, members in a.foundings}
            return (
                f"Answer({key}) change {a.change}: process {a.process}, workers {a.ids}, server {a.server}, "
                f"members {a.membership.ids} v{a.membership.version} in {sorted(a.processes)}, foundings {founds}"
            )
        case messages.Answer(key, messages.Denied(reason)):
            return f"Answer({key}) denied: {reason}"
        case messages.Commit(change, membership, founds, processes):
            who = f"{membership.ids} v{membership.version} coordinated by {membership.coordinator}"
            return f"Commit({change}) {who} in {sorted(processes)}, founds {founds}"
        case messages.FoundersAnswer(dataflow, founders):
            return f"FoundersAnswer({dataflow}) {founders.ids}"
        case messages.Succession(m, processes, foundings, change, worker, process, waiting, luggage, reports):
            who = f"worker {m.coordinator} of {m.ids} v{m.version} in {sorted(processes)}, {len(foundings)} foundings"
            queue = f"next {change}, {worker}, {process}; waiting {list(waiting)}"
            return f"Succession {who}; {queue}; luggage {luggage!r}" + f"; {reports=}" * bool(reports)
        case messages.Handover(membership):
            return f"Handover to worker {membership.coordinator}, v{membership.version}"
    return repr(message)


class Play:
    """Workers that follow the lines of a transcript, each in its role."""

    def __init__(self) -> None:
        self.roles: dict[int, Role] = {}
        self.at = 0
        self.succession: messages.Succession | None = None

    @property
    def role(self) -> Role:
        """The role of the worker that receives the lines now."""
        return self.roles[self.at]

    def hear(self, line: str) -> list[str]:
        """Return the answers to one line."""
        if line.startswith("cluster("):
            first: Sequencer = eval(line, {"cluster": cluster})
            self.at, self.roles = 0, {each: Role(each, None if each else first) for each in first.membership.ids}
            return []
        if line.startswith("at "):
            self.at = int(line.removeprefix("at "))
            return []
        if line.startswith("reach "):
            assert self.role.sequencer is not None
            reach(self.role.sequencer, line.removeprefix("reach "))
            return []
        try:
            return self.act(*line.split(" ", 2))
        except MegaflowError as error:
            return [f"{type(error).__name__}: {error}"]

    def act(self, time: str, who: str, rest: str = "") -> list[str]:
        """Return the answers to one line with a time."""
        now, role = float(time), self.role
        if who == "tick":
            warning = role.take_warning(now)
            return ([] if warning is None else [f"warning: {warning}"]) + self.say(role.tick(now))
        if who == "give":
            return self.say(role.give_up(rest.removeprefix("up "), now))
        if who == "call":
            ids, _, reason = rest.removeprefix("off ").partition(" ")
            return self.say(role.call_off(tuple(map(int, ids.split(","))), reason, now))
        if who == "hand":
            return self.say(role.hand_over(eval(rest.removeprefix("over ")), (), now))
        if who == "supervise":
            assert role.sequencer is not None
            role.sequencer.queue.supervised = True
            return []
        if who == "rule":
            ids, _, reason = rest.partition(" ")
            return self.say(role.rule(tuple(map(int, ids.split(","))), reason or None, now))
        message = eval(rest, {**NAMES, "join": join, "leave": leave, "succession": self.succession})
        lines = self.say(role.hear(int(who), message, now))
        if role.come_over is not None:
            lines.append(f"worker {self.at} coordinates, and is given {role.come_over.luggage!r}")
            lines += self.say(role.begin(now))
        return lines

    def say(self, mail: Mail) -> list[str]:
        """Return the lines. A transcript may refer to the last `succession` that was sent."""
        self.succession = next((each for _, each in mail if isinstance(each, messages.Succession)), self.succession)
        role = self.role
        heard = [f"program hears {body!r} of {source}" for source, body in role.reports]
        role.reports.clear()
        if role.come_over is None:
            role._check()
        return said(mail) + heard


def reach(machine: Sequencer, stage: str) -> None:
    """Take a change to a stage: the join of one process, or the leave of the last worker."""
    members = machine.membership.ids
    joins = stage in ("admitted", "preparing", "minting", "settling")
    machine.hear(0, join(1, len(machine.processes[0][2])) if joins else leave(members[-1]), 0.0)
    while machine.change is not None and machine.change.stage != stage:
        change: Any = machine.change
        number, ids = change.change, change.ids
        answers: dict[str, list[tuple[int, object]]] = {
            "admitted": [(new, messages.Hello(number, ("a",), ((0, 4),))) for new in ids],
            "preparing": [(member, messages.Prepared(number, 1)) for member in members]
            + [(new, messages.Ready(number, {"snapshot": 0.5}, 100)) for new in ids],
            "minting": [(0, messages.Minted(number, tuple(messages.Grant(0, 4, new, 7, 0, 9) for new in ids), ()))],
            "asking": [(member, messages.Objections(number, 1, ())) for member in members],
            "closing": [(leaver, messages.Retiring(number)) for leaver in ids],
        }
        for source, message in answers[change.stage]:
            machine.hear(source, message, 0.0)


def played(text: str) -> str:
    """Return the transcript with the present answers of the coordinator."""
    play, parts = Play(), []
    for block in text.strip().split("\n\n"):
        commands = block.strip().partition("\n----")[0].splitlines()
        answers = [line for command in commands if not command.startswith("#") for line in play.hear(command)]
        parts.append("\n".join([*commands, "----", *answers]))
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("coordinator_*.txt")), ids=lambda path: path.stem)
def test_the_coordinator_says_what_the_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = played(text)
    if os.environ.get("MEGAFLOW_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == text

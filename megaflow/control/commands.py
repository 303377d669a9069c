"""How a running job is steered, from the side of whoever steers: questions, plans, and plans carried out.

A plan is run by the client, one step after another; each step is a request of its own that is done before the next is
made. If the client dies, the job goes on with the table of the last step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from megaflow.control.messages import (
    Accepted,
    AddProcesses,
    BootstrapWorker,
    Done,
    ExplainQuery,
    Moved,
    Progress,
    Reconfigure,
    Refused,
    RemoveWorker,
    Request,
    StatusQuery,
    StopJob,
)
from megaflow.control.planner import Step, balance, drain, parse_bins, plan, read_map
from megaflow.errors import CommandRefused, MegaflowError, PeerLost, UsageError
from megaflow.routing import Move, RoutingTable, apply, difference, validate
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

MOVES_MAX = 10  # more in the course of one request: it moves faster than it can be asked


class Conversation:
    """Questions to the coordinator, one after another, wherever it is by then."""

    def __init__(
        self,
        client: Client,
        timeout_seconds: float,
        connect: Callable[[str, int], Client] | None = None,
        find: Callable[[], Client | None] = lambda: None,
    ) -> None:
        """`client` belongs to this from now on.

        `connect` follows the coordinator to an address, `find` to where the job is found by now, None if it is not.
        """
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._connect = connect
        self._find = find
        self._id = 0
        self.accepted: int | None = None  # the epoch of the last command, once it is accepted
        self._heard: Progress | None = None  # of the last command

    def ask(self, body: object, show: Callable[[Progress], None] | None = None) -> Any:
        """Return what the request is done with; `show` is told how far it has come.

        Raises CommandRefused with the reason, PeerLost if the job ends before, and MegaflowError if nothing is heard
        for the time given. Nothing is done twice: a coordinator that says that it has moved has begun nothing, nor has
        one that left the job without a word.
        """
        for _ in range(MOVES_MAX):
            self._id += 1
            self.accepted = self._heard = None
            try:
                self._client.send(Request(self._id, body))
                answer = self._await_answer(show)
            except TimeoutError as error:
                raise MegaflowError(self._overdue()) from error
            except PeerLost as error:
                if not self._find_again():
                    raise PeerLost(f"the job has ended before it was done with the request ({error})") from error
                continue
            if isinstance(answer, Done):
                return answer.result
            if self._connect is None:
                place = address_text((answer.host, answer.port))
                raise CommandRefused(f"the coordinator has moved to {place}: ask there")
            self.close()
            self._client = self._connect(answer.host, answer.port)
        raise MegaflowError(f"the job's coordinator has moved {MOVES_MAX} times while it was asked one thing")

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _find_again(self) -> bool:
        """Connect to where the job is found by now; False if that is where it was, or what was asked had begun."""
        if self.accepted is not None or self._heard is not None:
            return False
        client = self._find()
        if client is None:
            return False
        if client.address == self._client.address:
            client.close()
            return False
        self.close()
        self._client = client
        return True

    def _await_answer(self, show: Callable[[Progress], None] | None) -> Done | Moved:
        while True:
            answer = self._client.receive(self._timeout_seconds)
            match answer:
                case Refused(id, reason) if id == self._id:
                    raise CommandRefused(reason)
                case Accepted(id, epoch) if id == self._id:
                    self.accepted = epoch
                case Progress(id) if id == self._id:
                    self._heard = answer
                    if show is not None:
                        show(answer)
                case Done(id) | Moved(id) if id == self._id:
                    return answer

    def _overdue(self) -> str:
        waited = f"within {self._timeout_seconds:g} s"
        if self._heard is not None:
            what = f"{self._heard.what} ({self._heard.done} of {self._heard.steps} steps)"
            return f"nothing was heard {waited}, last: {what}; what was asked for goes on"
        if self.accepted is None:
            return f"the job did not answer {waited}; a worker may be in a long step of user code"
        return f"the command was accepted for epoch {self.accepted} but has not taken effect {waited}; it still will"


def ask_status(conversation: Conversation, tables: bool = True) -> dict[str, Any]:
    """Return the status record of a job."""
    record: dict[str, Any] = conversation.ask(StatusQuery(tables))
    return record


def ask_explanation(conversation: Conversation) -> dict[str, Any]:
    """Return the record that says what holds a job's output back."""
    record: dict[str, Any] = conversation.ask(ExplainQuery())
    return record


def add_processes(
    conversation: Conversation, count: int, show: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Have worker processes started that join the job; return how each join went, and which ones failed and why."""
    record: dict[str, Any] = conversation.ask(AddProcesses(count), show)
    return record


def check_removal(conversation: Conversation, worker: int) -> None:
    """Raise CommandRefused unless the worker's process may leave once its bins are elsewhere."""
    conversation.ask(RemoveWorker(worker, ask_only=True))


def remove_worker(
    conversation: Conversation, worker: int, show: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Have the process of a worker that owns no bins leave; return who has left."""
    record: dict[str, Any] = conversation.ask(RemoveWorker(worker), show)
    return record


def bootstrap_worker(conversation: Conversation, server: int, worker: int) -> dict[str, Any]:
    """Have a worker that has joined be given the routing table of another one."""
    record: dict[str, Any] = conversation.ask(BootstrapWorker(server, worker))
    return record


def stop_job(conversation: Conversation) -> None:
    """Have the job drain and stop; return when it has."""
    try:
        conversation.ask(StopJob())
    except PeerLost:
        if conversation.accepted is None:
            raise  # else: it was quicker than its answer


@dataclass(frozen=True, slots=True)
class Selection:
    """Which bins are to go where; exactly one of bins, balance, drain and map_text is given."""

    bins: str | None = None
    to: int | None = None  # with bins
    balance: bool = False
    drain: int | None = None
    map_text: str | None = None
    strategy: str = "fluid"
    batch: int | None = None  # bins a step, with strategy batched


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to a wanted table."""

    moves: list[tuple[int, int, int]]  # (bin, from, to)
    steps: list[Step]
    keys: int  # that move with them, about
    bytes: int | None  # about; None if no bin was ever moved, so that nothing is known of their size

    def record(self) -> dict[str, Any]:
        """Return it for `--dry-run --json`."""
        return {
            "moves": [{"bin": bin, "from": source, "to": target} for bin, source, target in self.moves],
            "steps": [[move.bin for move in step] for step in self.steps],
            "keys": self.keys,
            "bytes": self.bytes,
        }


def check_selection(selection: Selection) -> None:
    """Raise UsageError unless the words make one selection."""
    ways = {
        "--bins": selection.bins is not None,
        "--balance": selection.balance,
        "--drain": selection.drain is not None,
        "--map": selection.map_text is not None,
    }
    given = [way for way, chosen in ways.items() if chosen]
    if len(given) != 1:
        raise UsageError(f"say which bins move by one of {', '.join(ways)}; given: {' and '.join(given) or 'none'}")
    if (selection.to is not None) != (selection.bins is not None):
        raise UsageError("--bins and --to go together: --bins 0-127 --to 1")
    if (selection.batch is not None) != (selection.strategy == "batched"):
        raise UsageError("--batch N goes with --strategy batched, and only with that")


def make_plan(status: dict[str, Any], selection: Selection) -> Plan:
    """Return the plan for a selection on a job with this status. Raises UsageError and CommandRefused, as apt."""
    check_selection(selection)
    check_bins(status)
    table: RoutingTable = tuple(status["operators"][0]["table"])
    members = owners_of(status)
    target = wanted_table(table, members, selection)
    steps = plan(table, target, selection.strategy, selection.batch)
    for step in steps:
        for move in step:
            validate(move, len(table), members)
    return _planned(status, table, target, steps)


def plan_removal(status: dict[str, Any], worker: int) -> Plan:
    """Return the plan that takes all bins from the workers of this worker's process, one by one."""
    address = next((each["address"] for each in status["workers"] if each["id"] == worker), None)
    process = {each["id"] for each in status["workers"] if each["address"] == address}  # a port each
    if not status["operators"]:
        return Plan([], [], 0, None)
    table: RoutingTable = tuple(status["operators"][0]["table"])
    target = table
    for each in sorted(process):
        target = drain(target, each, (owners_of(status) - process) | {each})
    return _planned(status, table, target, plan(table, target, "fluid"))


def check_bins(status: dict[str, Any]) -> None:
    """Raise CommandRefused if the job has no bins."""
    if not status["operators"]:
        raise CommandRefused(f"job {status['job']!r} has no stateful operator, so there are no bins to move")


def owners_of(status: dict[str, Any]) -> set[int]:
    """Return the workers that may own bins."""
    return {worker["id"] for worker in status["workers"] if worker["state"] == "running"}


def _planned(status: dict[str, Any], table: RoutingTable, target: RoutingTable, steps: list[Step]) -> Plan:
    moves = difference(table, target)
    per_bin = keys_per_bin(status)
    keys = sum(per_bin.get(source, 0.0) for _, source, _ in moves)
    moved_keys = sum(entry["keys"] for entry in status["ledger"])
    moved_bytes = sum(entry["bytes"] for entry in status["ledger"])
    return Plan(moves, steps, round(keys), round(keys * moved_bytes / moved_keys) if moved_keys else None)


def wanted_table(table: RoutingTable, members: set[int], selection: Selection) -> RoutingTable:
    """Return the table that a selection asks for."""
    if selection.balance:
        return balance(table, members)
    if selection.drain is not None:
        return drain(table, selection.drain, members)
    if selection.map_text is not None:
        return read_map(selection.map_text, len(table))
    assert selection.bins is not None and selection.to is not None
    bins = parse_bins(selection.bins, len(table)) if selection.bins.strip() else []
    if not bins:
        raise CommandRefused(f"--bins {selection.bins!r} names no bin; bins are 0 to {len(table) - 1}")
    moves = [Move(bin, selection.to) for bin in bins]
    for move in moves:  # also when the bins are there already
        validate(move, len(table), members)
    return apply(table, moves)


def keys_per_bin(status: dict[str, Any]) -> dict[int, float]:
    """Return worker -> keys that a bin of it holds on average."""
    return {worker["id"]: worker["keys"] / max(1, worker["bins"]) for worker in status["workers"]}


def run_plan(conversation: Conversation, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """Carry out the steps; yield the account of each (epoch, bins, bytes, keys, seconds) when it is done."""
    for number, step in enumerate(steps):
        try:
            yield conversation.ask(Reconfigure(tuple(step)))
        except MegaflowError as error:
            if len(steps) > 1:
                where = f"step {number + 1} of {len(steps)}"
                raise type(error)(f"{where}: {error} (the steps before it are done)") from error
            raise


def total(accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the account of several steps.

    >>> total([{"epoch": 3, "bins": 1, "bytes": 10, "keys": 2, "seconds": 0.5}] * 2)
    {'steps': 2, 'bins': 2, 'bytes': 20, 'keys': 4, 'seconds': 1.0, 'epochs': [3, 3]}
    """
    def add(name: str) -> Any:
        return sum(account[name] for account in accounts)

    return {
        "steps": len(accounts),
        "bins": add("bins"),
        "bytes": add("bytes"),
        "keys": add("keys"),
        "seconds": add("seconds"),
        "epochs": [account["epoch"] for account in accounts],
    }

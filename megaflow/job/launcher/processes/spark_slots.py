"""Slots for worker processes on Spark's executors, from the search for a slot until the process begins.

1. A process is submitted when a slot is free for it beside Spark's own tasks (see `megaflow.spark.slots`). Processes
   that found an attempt are submitted together.
2. While processes wait, the user hears why: at first after FIRST_TOLD_SECONDS, then every TOLD_SECONDS.
3. The processes that a job had before a restart have ended, but their slots may stay taken for a while. Only the slots
   of other jobs can refuse a restart. It waits for slots without a time limit, as processes that join do: an executor
   may be lost for longer than a start takes. The job's first start ends at its deadline, with both numbers.
4. A thread looks for free slots for a process that joins, and wakes the launcher. So the launcher's thread does not
   wait for Java. The thread ends with the attempt that needs the slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from megaflow.control.wording import Notice
from megaflow.errors import ClusterError
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.provisioner import ProcessSlot
from megaflow.job.launcher.processes.remote_process import RemoteProcess
from megaflow.job.launcher.processes.wakeups import call_later
from megaflow.job.spec import Address, ChildSpec, Founder
from megaflow.quick_dataclass import dataclass
from megaflow.spark import launching as spark
from megaflow.spark.slots import FEWER, REMOVE, Slots, too_few

PROBE_SECONDS: Final = 15.0  # for agents to report which addresses they can reach
LOOK_SECONDS: Final = 0.5  # between two looks for slots
FIRST_TOLD_SECONDS: Final = 1.5
TOLD_SECONDS: Final = 10.0


@dataclass(eq=False)
class SparkSlots:
    """The wanted processes of an attempt, until they begin. All but `_slots` belongs to the launcher's thread."""

    left: int  # processes that are not submitted yet
    submit: Callable[[], RemoteProcess]
    jobs: spark.WorkerJobs
    draft: ChildSpec
    feeds: bool  # Spark's own tasks also need a slot
    deadline: float | None  # of the founders of an attempt, which begin together; None for joining processes
    report: Callable[[str], None]
    members: Callable[[], list[RemoteProcess]]  # the processes that have begun and still live
    wake: Callable[[], bool]  # returns False once the attempt has ended
    is_restart: bool = False  # the founders are those of a later attempt
    waiting: list[RemoteProcess] = field(init=False, default_factory=list)  # submitted, but not begun
    _slots: Slots = field(init=False)  # as last seen; written by the thread that looks
    _since: float = field(init=False, default_factory=time.monotonic)
    _asked: dict[RemoteProcess, tuple[float, list[RemoteProcess]]] = field(init=False, default_factory=dict)
    _probed: float | None = field(init=False, default=None)  # when all founders were asked what they can reach
    _told: float = field(init=False, default=0.0)  # earliest time of the next report, in seconds of the clock

    def __post_init__(self) -> None:
        self._told = self._since + FIRST_TOLD_SECONDS
        self._slots = self.jobs.slots()
        self._submit_those_that_fit()
        if self.deadline is None:
            self._look_later()

    def found(self) -> list[ProcessSlot]:
        """Return the slots of processes that can begin. Raises ClusterError."""
        if self.left and self.deadline is not None:
            self._slots = self.jobs.slots()
        self._submit_those_that_fit()
        for process in self.waiting:
            if process.returncode is not None:
                self.close()
                reason = process.how_lost() or "it was ended"
                raise ClusterError(f"process {process.number} could not be started: {reason}")
        if self.deadline is None:
            hosts = {process: host for process in self.waiting if (host := self._host_for_all(process)) is not None}
            self.waiting = [process for process in self.waiting if process not in hosts]
            return [SparkSlot(process, host) for process, host in hosts.items()]
        return self._found_together(self.deadline)

    def waits_for(self) -> str:
        """Return how many processes are queued, the slots that Spark has and needs, and what would free one."""
        slots, taken = self._slots, self.jobs.taken()
        queued = sum(process.hello is None for process in self.waiting)
        more = "the end of another job on these executors, or more executors would free one"
        if slots.elastic:
            more = "Spark starts executors when it can"
        elif not self.is_restart:  # otherwise no command reaches the job's workers
            more = f"remove-workers, {more}"
        if self.left:
            return f"{self.left + queued} queued: no free slot: {self._lack(slots, taken, more)}"
        if not queued:
            return "other processes are checking whether they can reach it"
        known = "" if slots.now is None else f" of {slots.now}"
        return f"{queued} queued: no free slot{known}; {more}"

    def close(self) -> None:
        """End all wanted processes."""
        self.left = 0
        for process in self.waiting:
            process.kill()
        self.waiting = []

    def _look_later(self) -> None:
        """Look for a slot again after LOOK_SECONDS, in a thread, while processes wait for one."""
        if not self.left:
            return

        def look() -> None:
            self._slots = self.jobs.slots()
            if self.wake():
                self._look_later()

        call_later(LOOK_SECONDS, look)

    def _submit_those_that_fit(self) -> None:
        """Submit processes for which there are slots. Raises ClusterError if there will never be enough."""
        if not self.left:
            return
        slots, taken = self._slots, self.jobs.taken()  # another request may have taken slots since the look
        room = slots.room(taken, self.feeds)
        fit = self.left if room is None else min(room, self.left)
        if fit < self.left and (self.deadline is not None or slots.most is not None):
            fit = 0  # they begin together, or may all be refused
        self.waiting += [self.submit() for _ in range(fit)]
        self.left -= fit
        if fit and self.is_restart:
            self.deadline = time.monotonic() + self.draft.job.start_timeout_seconds
        if self.left:
            self._say_what_lacks(slots, taken + fit)

    def _say_what_lacks(self, slots: Slots, taken: int) -> None:
        now = time.monotonic()
        lasting = taken if self.deadline is None else self.jobs.taken_by_others()
        if slots.never_fits(self.left, lasting, self.feeds, now - self._since):
            lack = self._lack(slots, taken, REMOVE if self.deadline is None else FEWER)
            self.close()
            raise ClusterError(lack)
        if self.deadline is not None and now >= self.deadline and not self.is_restart:
            seconds = self.draft.job.start_timeout_seconds
            raise ClusterError(f"{self._lack(slots, taken, FEWER)} (waited {seconds:g} s: --start-timeout)")
        self._tell(now, f"waiting for slots of Spark: {self.waits_for()}")

    def _tell(self, now: float, text: str) -> None:
        """Report a text, unless the last report was too recent."""
        if now >= self._told:
            self._told = now + TOLD_SECONDS
            self.report(text)

    def _lack(self, slots: Slots, taken: int, remedy: str) -> str:
        known = slots.most if slots.elastic else slots.now
        return too_few(known or 0, taken + self.left, self.feeds, remedy)

    def _host_for_all(self, process: RemoteProcess) -> str | None:
        """Return the host under which members reach a joining process; None until that is known.

        Raises ClusterError if there is none.
        """
        if (hello := process.hello) is None:
            return None
        places = tuple((host, hello.probe_port) for host in hello.hosts)
        if process not in self._asked:
            self._asked[process] = time.monotonic(), self.members()
            for member in self.members():
                member.probe((places,), self.wake)
            call_later(PROBE_SECONDS, self.wake)
        since, asked = self._asked[process]
        asked = [member for member in asked if member.returncode is None]
        reached = [member.reached or frozenset() for member in asked]
        if any(all(place in each for each in reached) for place in places) or time.monotonic() > since + PROBE_SECONDS:
            try:
                return choose_host(process.place, places, list(zip([member.place for member in asked], reached)))
            except ClusterError:
                self.close()
                raise
        return None

    def _found_together(self, deadline: float) -> list[ProcessSlot]:
        if self.left:
            return []
        hellos = [process.hello for process in self.waiting if process.hello is not None]
        now, count = time.monotonic(), len(self.waiting)
        if len(hellos) < count:
            seated = f"{len(hellos)} of {count} processes"
            free = self.jobs.slots().now
            slots = f"Spark has {free} slot{'s' * (free != 1)}"
            if now >= deadline:
                self.close()
                seconds = self.draft.job.start_timeout_seconds
                raise ClusterError(f"Only {seated} started within {seconds:g} s (--start-timeout); {slots}.")
            self._tell(now, Notice(f"waiting for processes to start: {seated}; {slots}"))
            return []
        places = [tuple((host, hello.probe_port) for host in hello.hosts) for hello in hellos]
        if self._probed is None:
            self._probed = now
            for process in self.waiting:
                process.probe(tuple(places))
        reached = [process.reached for process in self.waiting if process.reached is not None]
        if len(reached) < count and now < self._probed + PROBE_SECONDS:
            return []
        names = [process.place for process in self.waiting]
        hosts = choose_hosts(places, [process.reached or frozenset() for process in self.waiting], names)
        seated_all: list[ProcessSlot] = [SparkSlot(process, host) for process, host in zip(self.waiting, hosts)]
        self.waiting = []
        return seated_all


@dataclass(eq=False)
class SparkSlot:
    """Slot of an agent that waits for `Begin`."""

    process: RemoteProcess
    host: str

    @property
    def address(self) -> Address:
        """Address at which its process will listen."""
        assert self.process.hello is not None, "it is seated"
        return self.host, self.process.hello.port

    def start(self, spec: ChildSpec) -> Child:
        """Start the process."""
        part = spec.part
        if isinstance(part, Founder):
            return self.process.begin(spec.name, self.host, part.process, part.addresses)
        return self.process.begin(spec.name, self.host, None, (part.contact,))

    def close(self) -> None:
        """End the agent."""
        self.process.kill()


def choose_hosts(
    places: Sequence[Sequence[Address]], reached: Sequence[frozenset[Address]], names: Sequence[str]
) -> list[str]:
    """Return the first host of each process under which all others reach it. Raises ClusterError.

    >>> one, two = [("10.0.0.1", 5), ("192.168.0.1", 5)], [("10.0.0.2", 6)]
    >>> choose_hosts([one, two], [frozenset(two), frozenset(one[1:])], ["executor 0", "executor 1"])
    ['192.168.0.1', '10.0.0.2']
    """
    seen = list(zip(names, reached))
    return [choose_host(names[index], own, seen[:index] + seen[index + 1 :]) for index, own in enumerate(places)]


def choose_host(name: str, own: Sequence[Address], seen: Sequence[tuple[str, frozenset[Address]]]) -> str:
    """Return the first host of `own` that all others reach; `seen` has their names and the addresses they reach."""
    for place in own:
        if all(place in reached for _, reached in seen):
            return place[0]
    blind = next((other for other, reached in seen if not reached.intersection(own)), seen[0][0])
    tried = ", ".join(host for host, _ in own)
    raise ClusterError(
        f"{blind} cannot reach the process on {name} (tried {tried}). Let executors connect to each other on all ports."
    )

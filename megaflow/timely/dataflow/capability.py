"""The right to send: capabilities, and references to the times of records being consumed.

A capability is a pointstamp (output, time) with a count that every worker receives. Its holder may produce records at
that time or later. While it is held, no frontier downstream passes its time.

Rules that make the whole cluster's frontiers safe (notes: Naiad, section 2.3)
 1. A capability is minted from a held capability at or before its time, or from a record that is being consumed now. It
    is never minted from a frontier, because a negative count may be under way.
 2. Every mint and release is a +1 or -1 in the dataflow's one `ChangeBatch`, which leaves the worker only between
    operator invocations. So a record's consumption and the capabilities minted from it travel together.
 3. Release is explicit. A forgotten release holds the frontier back; it never breaks safety. If the object is lost as
    well, a ResourceWarning names the line that made it.
 4. There is one exception. An operator's constructor gets the initial capabilities. When it returns, the engine
    releases those that nothing refers to, because most operators need none (`release_ignored`). This is safe:
    - Python counts each reference: of a variable, closure, container, bound method, partial, suspended generator, and
      of a frame that a traceback or debugger keeps. So if only the engine's list refers to a capability, the program
      cannot reach it or use its right again. A weak reference finds it released.
    - A reference that the program cannot reach either, in a cycle or in a kept frame, only keeps the capability.
    - It does not depend on the garbage collector: it happens once, on the worker's thread, before the dataflow runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol
from weakref import ref

from megaflow.errors import CapabilityError, TimeError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.leaked_capability import Origin, caller, warn_of_loss
from megaflow.timely.order import Time, alike, less_equal
from megaflow.timely.path_summary import Summary
from megaflow.timely.progress.change_batch import ChangeBatch


class OutputPort(Protocol):
    """Output that a capability belongs to, as the capability uses it."""

    location: int
    number: int  # among the operator's outputs
    title: str  # operator and port, for messages
    changes: ChangeBatch[tuple[int, Time]]  # written here, drained by the dataflow after each step
    retained: dict[Time, ref[Capability]]  # time -> the operator's one capability for it, while the operator keeps it

    is_running: Callable[[], bool]  # whether a capability still matters: the dataflow exists and is not over
    where: str  # file:line of the operator's declaration


class Capability:
    """The right to send at `time` or later on one output.

    Capabilities compare and hash by output and time. A capability is a context manager that releases at the end.

    A worker that joined after its dataflow was founded starts with *absent* capabilities, which were never counted.
    Releasing and downgrading them does nothing; sending raises. Those of joinable sources are filled before the source
    may run.
    """

    __slots__ = ("__weakref__", "_origin", "_output", "absent", "held", "time")

    def __init__(self, output: OutputPort, time: Time, origin: Origin = None, absent: bool = False) -> None:
        """Wrap a count that is already registered, or no count if `absent`; see `mint`."""
        self._output = output
        self.time = time  # the least time at which it may send; written here only
        self._origin = origin
        self.held = not absent  # False once released; written here only
        self.absent = absent

    def fill(self, time: Time) -> None:
        """Hold this capability, which was absent or released.

        Another worker minted its count, or gave the count away.
        """
        assert not self.held, f"{self!r} is there already"
        self.absent, self.held, self.time = False, True, time

    def give_away(self) -> None:
        """Stop holding this capability without changing its count: another worker holds it from now on."""
        self._check_held("give_away")
        self.held = False
        self._forget()

    def check(self, output: OutputPort) -> None:
        """Raise unless a session at this time may be opened on `output` now."""
        if self._output is not output:
            raise CapabilityError(f"session: {self!r} is not a capability of {output.title}; retain one for it")
        if not self.held:
            raise CapabilityError(
                f"session: {self!r} was released and cannot send; open the session before the release"
            )

    def clone(self) -> Capability:
        """Return a second, independent capability for the same output and time."""
        self._check_held("clone")
        return mint(self._output, self.time)

    def delayed(self, time: Time) -> Capability:
        """Return a new capability at `time`, which must not be before this capability's time."""
        self._check_later(time, "delayed")
        return mint(self._output, time)

    def downgrade(self, time: Time) -> None:
        """Move this capability to the later `time`. It gives up the right to send at earlier times."""
        if self.absent:
            return
        self._check_later(time, "downgrade")
        if time == self.time:
            return
        self._output.changes.update((self._output.location, time), 1)
        self._output.changes.update((self._output.location, self.time), -1)
        self._forget()
        self.time = time

    def release(self) -> None:
        """Give up the right to send. A second call is harmless. An absent capability is then no longer filled."""
        self.absent = False
        if self.held:
            self.held = False
            self._output.changes.update((self._output.location, self.time), -1)
            self._forget()

    def _forget(self) -> None:
        retained = self._output.retained.get(self.time)
        if retained is not None and retained() is self:
            del self._output.retained[self.time]

    def _check_held(self, verb: str) -> None:
        if self.absent:
            raise CapabilityError(
                f"{verb}: {self._output.title} has no capability here: this worker joined after the dataflow was built"
            )
        if not self.held:
            raise CapabilityError(
                f"{verb}: the capability of {self._output.title} at {self.time!r} was released; keep a clone() instead"
            )

    def _check_later(self, time: Time, verb: str) -> None:
        self._check_held(verb)
        check_time(verb, self.time, time)
        if not less_equal(self.time, time):
            raise TimeError(
                f"{verb}({time!r}): the capability of {self._output.title} is at {self.time!r}, "
                f"which is not at or before {time!r}; capabilities only move forward"
            )

    def __del__(self) -> None:
        if self.held and self._output.is_running():
            warn_of_loss(
                f"a capability of {self._output.title} at time {self.time!r} was garbage-collected without "
                "release(), so it holds the frontier back permanently. Release it when it is no longer needed, or "
                "use it in a `with` block",
                self._output.where,
                self._origin,
            )

    def __enter__(self) -> Capability:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Capability):
            return NotImplemented
        return self._output is other._output and self.time == other.time

    def __hash__(self) -> int:
        return hash((self._output.location, self.time))

    def __repr__(self) -> str:
        state = "" if self.held else ", absent" if self.absent else ", released"
        return f"Capability({self._output.title}, {self.time!r}{state})"


def check_time(verb: str, present: Time, time: Time) -> None:
    """Raise TimeError unless `time` is of the same kind as `present`: an int, for example, or a Product as deep."""
    if not alike(time, present):
        name = type(time).__name__
        what = "this" if type(time) is type(present) else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        raise TimeError(
            f"{verb}({time!r}): {what} is not a time of this scope; "
            f"times here are like {present!r}, of type {type(present).__name__}"
        )


def mint(output: OutputPort, time: Time) -> Capability:
    """Return a new, counted capability. The caller must obey rule 1."""
    output.changes.update((output.location, time), 1)
    return Capability(output, time, caller())


def release_ignored(capabilities: list[Capability]) -> None:
    """Release the capabilities that only this list refers to: see rule 4."""
    alone = _references([object()], 0)  # Python versions differ in how they count an object in a list
    for index in range(len(capabilities)):  # no variable: a debugger that reads variables would refer to it
        if _references(capabilities, index) == alone:
            capabilities[index].release()


def _references(items: Sequence[object], index: int) -> int:
    return sys.getrefcount(items[index])


@dataclass(slots=True, eq=False)
class Invocation:
    """One run of an operator's logic. The references to times that it hands out end with it."""

    running: bool = True  # cleared by the operator's builder when the logic has returned
    time: Time | None = None  # of the batch taken last, for notes on errors
    retained: list[Capability] = field(default_factory=list)  # those first retained in this run; kept until its end

    def end(self) -> None:
        """Note that the logic has returned."""
        self.running = False
        self.retained.clear()


@dataclass(slots=True, eq=False, repr=False)
class CapabilityRef:
    """The time of a batch being consumed: a right to send that lasts until the operator returns."""

    time: Time  # of the batch; never changes
    _outputs: Sequence[OutputPort]  # all outputs of the operator
    _paths: Mapping[int, Summary]  # output number -> the path from this input; no entry if there is none
    _invocation: Invocation  # never a later one: by then the record's count is gone (rule 1)

    def retain(self, output: OutputPort | int | None = None) -> Capability:
        """Return the operator's one capability for this time at `output`. It is counted once, however often retained.

        Its time is the batch's time, changed by the path from this input. `output` is an output or its number. It may
        be omitted if this input leads to one output only.
        """
        port, time = self._reach(output, "retain")
        known = port.retained.get(time)
        held = None if known is None else known()
        if held is None:
            held = mint(port, time)
            port.retained[time] = ref(held)
            self._invocation.retained.append(held)
        return held

    def delayed(self, time: Time, output: OutputPort | int | None = None) -> Capability:
        """Return a new capability of `output` (see `retain`) at the later `time`."""
        port, least = self._reach(output, "delayed")
        check_time("delayed", least, time)
        if not less_equal(least, time):
            raise TimeError(
                f"delayed({time!r}): the batch being consumed by {port.title} is at {self.time!r}, "
                f"from which {time!r} cannot be reached; capabilities only move forward"
            )
        return mint(port, time)

    def check(self, output: OutputPort) -> None:
        """Raise unless a session at this time may be opened on `output` now."""
        if self._reach(output, "session")[1] != self.time:
            raise CapabilityError(
                f"session: {output.title} is reached from this input only at later times than {self.time!r}; "
                "open the session with retain()"
            )

    def _reach(self, output: OutputPort | int | None, verb: str) -> tuple[OutputPort, Time]:
        """Return an output, and the least time at which this batch can lead to records there."""
        if not self._invocation.running:
            raise CapabilityError(
                f"{verb}: the reference to time {self.time!r} ended when the operator returned; call retain() before"
            )
        number = self._number(output, verb)
        port, path = self._outputs[number], self._paths.get(number)
        if path is None:
            raise CapabilityError(f"{verb}: no path leads from this input to {port.title}; it cannot send there")
        time = path.apply(self.time)
        if time is None:
            raise CapabilityError(f"{verb}: by {path!r}, no record at {self.time!r} reaches {port.title}")
        return port, time

    def _number(self, output: OutputPort | int | None, verb: str) -> int:
        """Return the number of the operator's output that `output` stands for."""
        if output is None:
            if len(self._paths) > 1:
                raise CapabilityError(
                    f"{verb}: the input of this time leads to {len(self._paths)} outputs; name one: "
                    f"{verb}({'time, ' if verb == 'delayed' else ''}output)"
                )
            return next(iter(self._paths), 0)
        if not isinstance(output, int):
            number = output.number
            if number >= len(self._outputs) or self._outputs[number] is not output:
                raise CapabilityError(f"{verb}: this time belongs to another operator than {output.title}")
            return number
        if not 0 <= output < len(self._outputs):
            raise CapabilityError(f"{verb}: there is no output {output}; the operator has {len(self._outputs)}")
        return output

    def __repr__(self) -> str:
        return f"CapabilityRef({self.time!r})"

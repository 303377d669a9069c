"""The right to send: capabilities, and references to the times of records being consumed.

A capability is a pointstamp (output, time) with a count that every worker hears of. Its holder may produce records at
that time or later; while it is held, no frontier downstream passes its time.

Rules, which make the whole cluster's frontiers safe (notes: Naiad, section 2.3)
 1. A capability is minted from a held capability at or before its time, or from a
    record that is being consumed now. Never from a frontier: a negative count may
    be on its way.
 2. Every mint and release is a +1 or -1 in the dataflow's one `ChangeBatch`, which
    leaves the worker between operator invocations only; so a record's consumption
    and the capabilities minted from it travel together.
 3. Release is explicit. Forgetting it holds the frontier back; it never breaks safety. If the object
    is lost as well, a ResourceWarning names the line that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from weakref import ref

from megaflow.errors import CapabilityError, TimeError
from megaflow.timely.dataflow.leaked_capability import Origin, caller, warn_of_loss
from megaflow.timely.order import Time, alike, less_equal
from megaflow.timely.path_summary import Summary
from megaflow.timely.progress.change_batch import ChangeBatch


class OutputPort(Protocol):
    """What a capability knows of the output that it belongs to."""

    location: int
    number: int  # among the operator's outputs
    title: str  # operator and port, for messages
    changes: ChangeBatch[tuple[int, Time]]  # written here, drained by the dataflow after each step
    retained: dict[Time, ref[Capability]]  # time -> the operator's one capability for it, while it keeps it

    is_running: Callable[[], bool]  # whether a capability still matters: the dataflow is there and has not ended
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
        """Wrap a count that is already registered, or none if `absent`; see `mint`."""
        self._output = output
        self.time = time  # the least at which it may send; written here only
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
        """Stop holding this capability, without a count: another worker holds it from now on."""
        self._check_held("give_away")
        self.held = False
        self._forget()

    def belongs_to(self, output: OutputPort) -> bool:
        """Tell whether this is a capability of `output`."""
        return self._output is output

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
    """Raise TimeError unless `time` is of the kind of `present`: an int, or say a Product as deep in its scopes."""
    if not alike(time, present):
        name = type(time).__name__
        what = "this" if type(time) is type(present) else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        raise TimeError(
            f"{verb}({time!r}): {what} is not a time of this scope; "
            f"times here are like {present!r}, of type {type(present).__name__}"
        )


def mint(output: OutputPort, time: Time) -> Capability:
    """Return a new capability, counted. The caller answers for rule 1."""
    output.changes.update((output.location, time), 1)
    return Capability(output, time, caller())


class Invocation:
    """One run of an operator's logic; the references to times that it hands out end with it."""

    __slots__ = ("retained", "running", "time")

    def __init__(self) -> None:
        self.running = True  # cleared by the operator's builder when the logic has returned
        self.time: Time | None = None  # of the batch taken last, for blame
        self.retained: list[Capability] = []  # first retained in this run: lost, if at all, at its end

    def end(self) -> None:
        """Note that the logic has returned."""
        self.running = False
        self.retained.clear()


class CapabilityRef:
    """The time of a batch being consumed: a right to send that lasts until the operator returns."""

    __slots__ = ("_invocation", "_outputs", "_paths", "time")

    def __init__(
        self, time: Time, outputs: Sequence[OutputPort], paths: Mapping[int, Summary], invocation: Invocation
    ) -> None:
        self.time = time  # of the batch; never changed
        self._outputs = outputs  # all of the operator's
        self._paths = paths  # output number -> the path from this input; no entry where there is none
        self._invocation = invocation  # never a later one: by then the record's count is gone (rule 1)

    def retain(self, output: OutputPort | int | None = None) -> Capability:
        """Return the operator's one capability for this time at `output`, counted once however often retained.

        The time is what the path from this input makes of the batch's time. `output` is an output or its number; it
        may be left out where this input leads to one only.
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
        """Return a new capability of `output`, see `retain`, at the later `time`."""
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
        """Return which of the operator's outputs is meant."""
        if output is None:
            if len(self._paths) > 1:
                raise CapabilityError(
                    f"{verb}: the input of this time leads to {len(self._paths)} outputs; name one: "
                    f"{verb}({'time, ' if verb == 'delayed' else ''}output)"
                )
            return next(iter(self._paths), 0)
        if not isinstance(output, int):
            if not any(each is output for each in self._outputs):
                raise CapabilityError(f"{verb}: this time belongs to another operator than {output.title}")
            return output.number
        if not 0 <= output < len(self._outputs):
            raise CapabilityError(f"{verb}: there is no output {output}; the operator has {len(self._outputs)}")
        return output

    def __repr__(self) -> str:
        return f"CapabilityRef({self.time!r})"

"""Capabilities: the counted right to send; every misuse is an error that says what to do."""

from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from megaflow.errors import CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.timely import Capability, InputHandle, Pipeline, ProbeHandle, Product
from megaflow.timely.dataflow.capability import CapabilityRef, Invocation, mint
from megaflow.timely.path_summary import feedback, identity
from megaflow.timely.progress.change_batch import ChangeBatch
from tests.timely.workers import by_hand


class Port:
    """Output without an operator."""

    def __init__(self, location: int = 4) -> None:
        self.location = location
        self.number = 0
        self.title = "output 0 of 'Test' (file:1)"
        self.changes: ChangeBatch[Any] = ChangeBatch()
        self.retained: dict[Any, ref[Capability]] = {}
        self.is_running: Callable[[], bool] = lambda: False  # an output without an operator does not warn
        self.where = "file:1"

    def counts(self) -> dict[Any, int]:
        """Return time -> change since the start."""
        return {time: delta for (location, time), delta in self.changes if location == self.location}


@pytest.fixture
def port() -> Port:
    return Port()


def reference(port: Port, time: Any, adds: int | None = 0) -> tuple[CapabilityRef, Invocation]:
    """A reference to `time` on an input whose path to the output adds `adds`; None: no path."""
    paths = {} if adds is None else {0: feedback(0, adds) if adds else identity(0)}
    invocation = Invocation()
    return CapabilityRef(time, [port], paths, invocation), invocation


def test_minting_counts_one_and_releasing_takes_it_back(port: Port) -> None:
    capability = mint(port, 3)
    assert port.counts() == {3: 1}
    capability.release()
    assert port.counts() == {}


def test_a_second_release_is_harmless(port: Port) -> None:
    other, capability = mint(port, 3), mint(port, 3)
    capability.release()
    capability.release()
    assert port.counts() == {3: 1}
    assert other.held and not capability.held


def test_a_capability_is_released_at_the_end_of_its_block_also_by_an_exception(port: Port) -> None:
    with mint(port, 1) as capability:
        assert capability.held
    with pytest.raises(ZeroDivisionError), mint(port, 2):
        raise ZeroDivisionError
    assert port.counts() == {}


def test_downgrading_moves_the_count(port: Port) -> None:
    capability = mint(port, 1)
    capability.downgrade(5)
    assert capability.time == 5
    assert port.counts() == {5: 1}


def test_downgrading_to_the_present_time_changes_nothing(port: Port) -> None:
    capability = mint(port, 1)
    capability.downgrade(1)
    assert port.counts() == {1: 1}


def test_delayed_leaves_the_first_capability_as_it_is(port: Port) -> None:
    capability = mint(port, 1)
    later = capability.delayed(4)
    assert port.counts() == {1: 1, 4: 1}
    capability.release()
    assert later.held


def test_a_clone_is_a_hold_of_its_own(port: Port) -> None:
    capability = mint(port, 1)
    clone = capability.clone()
    assert clone is not capability and clone == capability
    capability.release()
    assert port.counts() == {1: 1}


def test_capabilities_compare_and_hash_by_output_and_time() -> None:
    one, other = Port(1), Port(2)
    assert mint(one, 1) == mint(one, 1)
    assert len({mint(one, 1), mint(one, 1), mint(one, 2), mint(other, 1)}) == 3
    assert mint(one, 1) != mint(other, 1)
    assert mint(one, 1) != 1


@pytest.mark.parametrize("verb", ["downgrade", "delayed"])
def test_capabilities_only_move_forward_and_the_error_names_both_times(port: Port, verb: str) -> None:
    capability = mint(port, 5)
    with pytest.raises(TimeError, match=rf"{verb}\(4\).*Test.*file:1.*is at 5.*only move forward"):
        getattr(capability, verb)(4)
    assert capability.time == 5
    assert port.counts() == {5: 1}


@pytest.mark.parametrize("verb", ["downgrade", "delayed"])
@pytest.mark.parametrize("time", ["7", 7.0, True, None, Product(7, 0)])
def test_a_time_of_another_type_is_refused_by_name(port: Port, verb: str, time: Any) -> None:
    with pytest.raises(TimeError, match=rf"{type(time).__name__} is not a time of this scope.*type int"):
        getattr(mint(port, 5), verb)(time)
    assert port.counts() == {5: 1}


@pytest.mark.parametrize(
    "use", [lambda c: c.downgrade(9), lambda c: c.delayed(9), Capability.clone], ids=["downgrade", "delayed", "clone"]
)
def test_use_after_release_says_so(port: Port, use: Callable[[Capability], object]) -> None:
    capability = mint(port, 5)
    capability.release()
    with pytest.raises(CapabilityError, match=r"output 0 of 'Test' \(file:1\) at 5 was released; keep a clone"):
        use(capability)
    assert port.counts() == {}


def test_retain_gives_the_one_capability_counted_once(port: Port) -> None:
    time, _ = reference(port, 3)
    kept = time.retain()
    assert time.retain() is kept
    assert reference(port, 3)[0].retain() is kept
    assert port.counts() == {3: 1}


def test_retain_after_release_or_downgrade_mints_anew(port: Port) -> None:
    time, _ = reference(port, 3)
    first = time.retain()
    first.release()
    second = time.retain()
    assert second is not first and second.held
    second.downgrade(4)
    assert time.retain().time == 3
    assert port.counts() == {3: 1, 4: 1}


def test_a_clone_of_the_retained_capability_outlives_it(port: Port) -> None:
    time, _ = reference(port, 3)
    clone = time.retain().clone()
    time.retain().release()
    assert clone.held
    assert port.counts() == {3: 1}


def test_retain_applies_the_path_from_the_input(port: Port) -> None:
    assert reference(port, 3, adds=2)[0].retain().time == 5


def test_delayed_from_a_batch_may_not_go_back_or_below_the_path(port: Port) -> None:
    time, _ = reference(port, 3, adds=2)
    assert time.delayed(5).time == 5
    with pytest.raises(TimeError, match=r"delayed\(4\).*is at 3.*4 cannot be reached"):
        time.delayed(4)
    with pytest.raises(TimeError, match=r"delayed\('9'\).*a str is not a time"):
        time.delayed("9")  # type: ignore[arg-type]


def test_a_reference_ends_when_the_operator_returns(port: Port) -> None:
    time, invocation = reference(port, 3)
    invocation.running = False
    for use in (time.retain, lambda: time.delayed(4)):
        with pytest.raises(CapabilityError, match="the reference to time 3 ended when the operator returned"):
            use()
    assert time.time == 3
    assert port.counts() == {}


def test_an_input_without_a_path_gives_no_capability(port: Port) -> None:
    time, _ = reference(port, 3, adds=None)
    with pytest.raises(CapabilityError, match="no path leads from this input to output 0 of 'Test'"):
        time.retain()
    with pytest.raises(CapabilityError, match="there is no output 1; the operator has 1"):
        time.retain(1)


# In a running operator ----------------------------------------------------------------------


def operate(worker: Worker, logic: Callable[[Any, Any], None]) -> tuple[InputHandle[Any], Any, ProbeHandle]:
    """Build a dataflow around one unary operator."""
    handle: InputHandle[Any] = InputHandle()

    def build(capability: Capability, info: object) -> Callable[[Any, Any], None]:
        capability.release()
        return logic

    with worker.dataflow() as scope:
        stream = scope.input_from(handle).unary(Pipeline(), "Mine", build)
        captured, probe = stream.capture(), stream.probe()
    return handle, captured, probe


def test_a_reference_kept_from_an_earlier_run_is_refused_in_a_later_one() -> None:
    """Otherwise a capability would be minted from a record whose count is gone, behind the frontier."""
    hand, worker = by_hand()
    kept: list[CapabilityRef] = []
    refused: list[str] = []

    def logic(input: Any, output: Any) -> None:
        for time, _ in input:
            kept.append(time)
            if len(kept) == 2:
                for use in (kept[0].retain, lambda: output.session(kept[0])):
                    with pytest.raises(CapabilityError, match="the reference to time 0 ended") as caught:
                        use()
                    refused.append(str(caught.value))

    handle, _, probe = operate(worker, logic)
    handle.send("a")
    handle.advance_to(1)
    hand.settle()
    assert not probe.less_than(1)
    handle.send("b")
    handle.close()
    hand.settle()
    assert len(refused) == 2
    assert probe.done()


def test_a_retained_capability_holds_the_frontier_until_released() -> None:
    hand, worker = by_hand()
    held: list[Capability] = []
    handle, _, probe = operate(worker, lambda input, output: held.extend(time.retain() for time, _ in input))
    handle.send("a")
    handle.close()
    hand.settle()
    assert probe.frontier.elements == (0,)
    held[0].downgrade(7)
    hand.settle()
    assert probe.frontier.elements == (7,)
    assert worker.installed_dataflows
    held[0].release()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_a_capability_of_another_operator_is_refused_by_both_names() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    stolen: list[Capability] = []

    def keep(capability: Capability, info: object) -> Callable[[Any, Any], None]:
        stolen.append(capability)
        return lambda input, output: None

    def use(capability: Capability, info: object) -> Callable[[Any, Any], None]:
        def logic(input: Any, output: Any) -> None:
            for _ in input:
                output.session(stolen[0])

        return logic

    with worker.dataflow() as scope:
        stream = scope.input_from(handle)
        stream.unary(Pipeline(), "Owner", keep)
        stream.unary(Pipeline(), "Thief", use)
    handle.send(1)
    handle.flush()
    with pytest.raises(CapabilityError, match=r"output 0 of 'Owner'.*is not a capability of output 0 of 'Thief'"):
        hand.settle()


def test_a_batch_time_of_another_operator_is_refused() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Any] = []

    def first(capability: Capability, info: object) -> Callable[[Any, Any], None]:
        return lambda input, output: seen.extend(time for time, _ in input)

    def second(capability: Capability, info: object) -> Callable[[Any, Any], None]:
        def logic(input: Any, output: Any) -> None:
            for _ in input:
                seen[0]._invocation.running = True  # even then
                output.session(seen[0])

        return logic

    with worker.dataflow() as scope:
        stream = scope.input_from(handle)
        stream.unary(Pipeline(), "First", first)
        stream.unary(Pipeline(), "Second", second)
    handle.send(1)
    handle.flush()
    with pytest.raises(CapabilityError, match="this time belongs to another operator than output 0 of 'Second'"):
        hand.settle()


def test_a_session_with_a_released_capability_is_refused() -> None:
    hand, worker = by_hand()

    def logic(input: Any, output: Any) -> None:
        for time, _ in input:
            capability = time.retain()
            capability.release()
            output.session(capability)

    handle, _, _ = operate(worker, logic)
    handle.send("a")
    handle.flush()
    with pytest.raises(CapabilityError, match=r"Mine.*0, released\) was released and cannot send"):
        hand.settle()

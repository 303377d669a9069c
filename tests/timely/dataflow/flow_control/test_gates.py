"""Gates and downstreams: a waiting operator is woken once each closed gate has opened, and may then send a batch."""

from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.dataflow.flow_control.gates import Downstream, Gate


def downstream_of(gates: list[Gate]) -> tuple[Downstream, list[str]]:
    woken: list[str] = []
    downstream = Downstream(lambda: woken.append("woken"))
    for gate in gates:
        gate.downstreams.append(downstream)
    return downstream, woken


def test_a_room_is_full_while_one_of_its_gates_is_closed() -> None:
    first, second = Gate(), Gate()
    downstream, _ = downstream_of([first, second])
    assert not downstream.is_full()
    first.close()
    second.close()
    assert downstream.is_full()
    first.open()
    assert downstream.is_full()
    second.open()
    assert not downstream.is_full()


def test_who_has_not_asked_is_not_woken() -> None:
    gate = Gate()
    _, woken = downstream_of([gate])
    gate.close()
    gate.open()
    assert woken == []


def test_who_waits_is_woken_once() -> None:
    gate = Gate()
    downstream, woken = downstream_of([gate])
    gate.close()
    assert downstream.is_full() and downstream.is_full()
    gate.open()
    assert woken == ["woken"]
    gate.close()
    gate.open()
    assert woken == ["woken"]


def test_two_gates_that_are_never_open_together_do_not_keep_a_waiter_out() -> None:
    first, second = Gate(), Gate()
    downstream, woken = downstream_of([first, second])
    first.close()
    second.close()
    assert downstream.is_full()
    first.open()
    first.close()
    assert downstream.is_full() and not woken
    second.open()
    assert woken and not downstream.is_full(), "it may go on, though the first is closed again"
    downstream.granted = False  # as `ship` does
    assert downstream.is_full()


def test_a_gate_that_is_closed_again_before_the_waiter_runs_lets_one_batch_through() -> None:
    gate = Gate()
    downstream, _ = downstream_of([gate])
    gate.close()
    assert downstream.is_full()
    gate.open()
    gate.close()
    assert not downstream.is_full() and not downstream.is_full()
    downstream.granted = False
    assert downstream.is_full()


@given(st.lists(st.tuples(st.sampled_from(["close", "open", "ask", "send"]), st.integers(0, 2))))
def test_a_waiter_is_woken_exactly_when_all_gates_it_found_closed_have_been_open(steps: list[tuple[str, int]]) -> None:
    gates = [Gate() for _ in range(3)]
    downstream, woken = downstream_of(gates)
    missing: set[int] | None = None  # gates that must open before the operator is woken
    expected, free = 0, False
    for verb, number in steps:
        gate = gates[number]
        if verb == "close" and not gate.closed:
            gate.close()
        elif verb == "open" and gate.closed:
            gate.open()
            if missing is not None:
                missing.discard(number)
                if not missing:
                    missing, expected, free = None, expected + 1, True
        elif verb == "ask":
            closed = {index for index, each in enumerate(gates) if each.closed}
            assert downstream.is_full() == (bool(closed) and not free)
            if closed and not free and missing is None:
                missing = closed
        elif verb == "send":
            downstream.granted = free = False
        assert len(woken) == expected
        assert downstream.closed == {each for each in gates if each.closed} >= downstream.wanted

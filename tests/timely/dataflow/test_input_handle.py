"""InputHandle: records in, time by time, into one dataflow or several."""

from typing import Any

import pytest

from megaflow.errors import BuildError, CapabilityError, TimeError
from megaflow.program import Worker
from megaflow.timely import InputHandle, ProbeHandle, Product
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.workers import EVERY, by_hand, drain, run


def test_records_carry_the_time_at_which_they_were_sent() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        captured = stream.capture()
    for time in (0, 2, 7):
        handle.advance_to(time)
        handle.send(f"at {time}")
        handle.send_batch([time])
    handle.close()
    hand.settle()
    assert captured.extract() == [(time, [f"at {time}", time]) for time in (0, 2, 7)]


def test_send_and_send_batch_keep_their_order() -> None:
    hand, worker = by_hand()
    seen: list[int] = []
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.inspect(seen.append)
    handle.send(0)
    handle.send_batch([1, 2])
    handle.send(3)
    handle.close()
    hand.settle()
    assert seen == [0, 1, 2, 3]


def test_records_leave_in_batches_of_bounded_size() -> None:
    hand, worker = by_hand()
    sizes: list[int] = []
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.inspect_batch(lambda time, batch: sizes.append(len(batch)))
    for x in range(2 * BATCH_RECORDS + 1):
        handle.send(x)
    hand.settle()
    assert sizes == [BATCH_RECORDS, BATCH_RECORDS]
    handle.flush()
    hand.settle()
    assert sizes == [BATCH_RECORDS, BATCH_RECORDS, 1]
    handle.send_batch(list(range(3 * BATCH_RECORDS)))
    hand.settle()
    assert sizes[3:] == [BATCH_RECORDS] * 3


def test_a_list_that_was_sent_may_be_used_again() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        captured = stream.capture()
    batch = [1, 2]
    handle.send_batch(batch)
    batch.clear()
    handle.close()
    hand.settle()
    assert captured.extract() == [(0, [1, 2])]


@pytest.mark.parametrize("workers", EVERY)
def test_an_input_nobody_waits_for_is_drained_on_return(workers: int) -> None:  # engine case 3
    def main(worker: Worker) -> list[tuple[Any, int]]:
        seen: list[tuple[Any, int]] = []
        numbers: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            scope.input_from(numbers).exchange(lambda x: x).inspect_time(lambda time, x: seen.append((time, x)))
        for number in range(10):
            if worker.index == 0:
                numbers.send(number)
            numbers.advance_to(number + 1)
            worker.step()
        return seen

    found = run(workers, main)
    assert found == [[(x, x) for x in range(10) if x % workers == index] for index in range(workers)]


def test_time_only_moves_forward_and_the_error_names_both_times() -> None:  # engine case 38
    handle: InputHandle[int] = InputHandle()
    handle.advance_to(5)
    handle.advance_to(5)
    with pytest.raises(TimeError, match=r"advance_to\(4\): the input is already at 5; time only moves forward"):
        handle.advance_to(4)
    assert handle.time == 5


@pytest.mark.parametrize("time", ["6", 6.0, None, True, Product(6, 0)])
def test_what_is_no_time_is_refused_and_changes_nothing(time: Any) -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        probe = stream.probe()
    with pytest.raises(TimeError, match=rf"{type(time).__name__} is not a time of this scope.*of type int"):
        handle.advance_to(time)
    hand.settle()
    assert handle.time == 0 and probe.frontier.elements == (0,)


def test_a_closed_input_keeps_its_time_and_refuses_the_rest() -> None:
    handle: InputHandle[int] = InputHandle()
    handle.advance_to(3)
    handle.close()
    handle.close()
    assert handle.closed and handle.time == 3
    for use in (lambda: handle.send(1), lambda: handle.send_batch([1]), lambda: handle.advance_to(9)):
        with pytest.raises(CapabilityError, match="the input was closed at time 3; it can no longer send"):
            use()
    handle.flush()


def test_closing_an_input_sends_what_is_buffered_and_ends_the_stream() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        captured, probe = stream.capture(), stream.probe()
    handle.send(1)
    handle.close()
    hand.settle()
    assert captured.extract() == [(0, [1])] and probe.done() and not worker.installed_dataflows


def test_one_handle_feeds_two_dataflows_each_from_where_it_began() -> None:  # engine case 37
    hand, worker = by_hand()
    handle: InputHandle[str] = InputHandle()
    probes = [ProbeHandle(), ProbeHandle()]
    with worker.dataflow() as scope:
        first = scope.input_from(handle).probe_with(probes[0]).capture()
    handle.send("before")
    handle.advance_to(5)
    handle.send("buffered")
    with worker.dataflow() as scope:
        second = scope.input_from(handle).probe_with(probes[1]).capture()
    hand.settle()
    assert [probe.frontier.elements for probe in probes] == [(5,), (5,)]
    handle.send("later")
    handle.advance_to(6)
    hand.settle()
    assert [probe.frontier.elements for probe in probes] == [(6,), (6,)]
    handle.close()
    hand.settle()
    assert first.extract() == [(0, ["before"]), (5, ["buffered", "later"])]
    assert second.extract() == [(5, ["later"])]
    assert not worker.installed_dataflows


@pytest.mark.parametrize("workers", EVERY)
def test_a_handle_advanced_before_it_is_attached_starts_the_stream_there(workers: int) -> None:  # case 37, #264
    def main(worker: Worker) -> Any:
        handle: InputHandle[int] = InputHandle()
        handle.advance_to(5)
        with worker.dataflow() as scope:
            stream = scope.input_from(handle).exchange(lambda x: x)
            probe, captured = stream.probe(), stream.capture()
        assert probe.less_equal(0), "before the others have been heard of"
        handle.send(worker.index)
        worker.step_while(lambda: probe.less_than(5))
        assert probe.frontier.elements == (5,)
        handle.close()
        drain(worker)
        return captured

    assert run(workers, main) == [[(5, [index])] for index in range(workers)]


def test_a_closed_handle_makes_an_empty_stream() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    handle.advance_to(2)
    handle.close()
    with worker.dataflow() as scope:
        probe = scope.input_from(handle).probe()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows


def test_records_sent_while_the_dataflow_is_built_are_refused_not_lost() -> None:
    _, worker = by_hand()
    said = r"dataflow 'early' is still being built.*send after the end of its `with` block"
    with pytest.raises(BuildError, match=said), worker.dataflow("early") as scope:
        handle, stream = scope.new_input()
        handle.send_batch([1])
        stream.capture()


def test_a_record_buffered_while_the_dataflow_is_built_arrives() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        handle.send(1)
        captured = stream.capture()
    handle.close()
    hand.settle()
    assert captured.extract() == [(0, [1])]

"""execute: threads that start, end and fail together."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, PeerFailed, UsageError
from megaflow.program import Worker, execute
from megaflow.timely import Config, InputHandle
from tests.timely.workers import EVERY

PATIENCE_SECONDS = 90.0


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Check that no thread remains: it would keep the program from ending."""
    yield
    left = [each for each in threading.enumerate() if each.name.startswith("megaflow-") and not each.daemon]
    for thread in left:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in left), left


@pytest.mark.parametrize("workers", EVERY)
def test_results_come_in_the_order_of_the_workers(workers: int) -> None:
    assert execute(Config.process(workers), lambda worker: worker.index) == list(range(workers))


def test_one_worker_runs_on_the_calling_thread() -> None:
    assert execute(Config.thread(), lambda worker: threading.current_thread()) == [threading.current_thread()]


def test_threads_of_one_process_take_turns_quickly_and_only_while_they_run() -> None:
    before = sys.getswitchinterval()
    assert max(execute(Config.process(2), lambda worker: sys.getswitchinterval())) <= 0.001
    assert execute(Config.thread(), lambda worker: sys.getswitchinterval()) == [before]
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("busy", [0, 1])
def test_a_worker_that_is_always_busy_does_not_keep_the_other_from_finishing(busy: int) -> None:
    """It computes until the other has completed its rounds. If the other starved, this would never end."""
    rounds, done = 200, threading.Event()

    def main(worker: Worker) -> int:
        count = 0
        if worker.index == busy:
            while not done.is_set():
                count += 1
            return count
        end = worker.allocator
        while count < rounds:
            worker.post(worker.index, "turn", count)
            end.park(None)
            count += len(end.receive())
        done.set()
        return count

    results = execute(Config.process(2), main)
    assert results[1 - busy] == rounds


@pytest.mark.parametrize("workers", EVERY)
def test_what_a_program_leaves_open_is_closed_and_drained_when_it_returns(workers: int) -> None:
    seen: list[int] = []

    def main(worker: Worker) -> None:
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            scope.input_from(handle).exchange(lambda x: x).inspect(seen.append)
        handle.send(worker.index)

    execute(Config.process(workers), main)
    assert sorted(seen) == list(range(workers))


FAILING = 1  # the worker that raises


def in_operator(worker: Worker) -> None:
    with worker.dataflow() as scope:
        scope.to_stream([0]).map(lambda x: 1 // (x if worker.index == FAILING else 1))


def in_main(worker: Worker) -> None:
    if worker.index == FAILING:
        raise ZeroDivisionError("in main")
    waiting(worker)


def in_build(worker: Worker) -> None:
    with worker.dataflow() as scope:
        scope.to_stream([0])
        if worker.index == FAILING:
            raise ZeroDivisionError("in build")
    waiting(worker)


def in_predicate(worker: Worker) -> None:
    if worker.index == FAILING:
        worker.step_while(lambda: bool(1 // 0))
    waiting(worker)


def waiting(worker: Worker) -> None:
    """Park without limit: only a failure can wake the worker."""
    while True:
        worker.step_or_park(None)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("main", [in_operator, in_main, in_build, in_predicate])
def test_an_exception_in_another_thread_stops_all_and_is_raised_as_it_is(  # engine case 47
    main: Callable[[Worker], Any], workers: int
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        execute(Config.process(workers), main)
    assert any(entry.name in (main.__name__, "<lambda>") for entry in caught.traceback)
    assert caught.value.__cause__ is None and caught.value.__context__ is None, "its traceback stands alone"
    if main is in_operator:
        assert "operator 'Map'" in caught.value.__notes__[0] and "worker 1" in caught.value.__notes__[0]


def test_the_other_workers_learn_who_failed_and_why() -> None:
    heard: list[str] = []

    def main(worker: Worker) -> None:
        try:
            in_operator(worker)
            waiting(worker)
        except PeerFailed as error:
            heard.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError):
        execute(Config.process(3), main)
    assert len(heard) <= 2
    for text in heard:
        assert text.startswith("worker 1 failed:\n") and "ZeroDivisionError" in text and "operator 'Map'" in text


def test_an_exception_in_the_first_worker_stops_the_others() -> None:
    def main(worker: Worker) -> None:
        if worker.index == 0:
            raise KeyError("first")
        waiting(worker)

    with pytest.raises(KeyError, match="first"):
        execute(Config.process(3), main)


def test_an_exception_after_others_are_done_is_raised_all_the_same() -> None:
    done = threading.Event()

    def main(worker: Worker) -> None:
        if worker.index == 0:
            done.set()
        else:
            assert done.wait(PATIENCE_SECONDS)
            raise KeyError("late")

    with pytest.raises(KeyError, match="late"):
        execute(Config.process(2), main)


def test_leaving_by_sys_exit_keeps_its_code() -> None:
    def main(worker: Worker) -> None:
        if worker.index == 1:
            sys.exit(3)
        waiting(worker)

    with pytest.raises(SystemExit) as caught:
        execute(Config.process(2), main)
    assert caught.value.code == 3


@pytest.mark.parametrize("workers", EVERY)
def test_ctrl_c_stops_workers_that_are_parked_without_end(workers: int) -> None:
    def main(worker: Worker) -> None:
        if worker.index == workers - 1:
            interrupt(worker)
        waiting(worker)

    with pytest.raises(KeyboardInterrupt):
        execute(Config.process(workers), main)


def test_ctrl_c_stops_the_other_threads_when_the_first_worker_is_done() -> None:
    def main(worker: Worker) -> None:
        if worker.index == 1:
            while not is_joining(threading.main_thread()):
                worker.step_or_park(0.001)
            interrupt(worker)

    with pytest.raises(KeyboardInterrupt):
        execute(Config.process(2), main)


def interrupt(worker: Worker) -> None:
    """Send Ctrl-C until it has an effect: Python drops a KeyboardInterrupt that meets the main thread in a finalizer.
    """
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        again = time.monotonic() + 5.0
        while time.monotonic() < again:
            worker.step_or_park(again - time.monotonic())


def is_joining(thread: threading.Thread) -> bool:
    assert thread.ident is not None
    frame = sys._current_frames()[thread.ident]
    while frame.f_back is not None and frame.f_code.co_name != "join":
        frame = frame.f_back
    return frame.f_code.co_name == "join"


# Configurations -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, -1])
def test_there_is_at_least_one_worker(workers: int) -> None:
    with pytest.raises(UsageError, match=rf"{workers} workers: there must be at least one worker"):
        Config.process(workers)
    with pytest.raises(UsageError, match=rf"{workers} workers: there must be at least one worker"):
        Config.cluster(["localhost:1"], 0, workers)


@pytest.mark.parametrize("process", [-1, 2])
def test_a_process_without_an_address_is_refused(process: int) -> None:
    with pytest.raises(UsageError, match=rf"process {process} of 2: there are addresses for processes 0 to 1"):
        Config.cluster(["localhost:1", "localhost:2"], process)


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":2101", "localhost:x", "localhost:70000", ""])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address; write host:port, as in localhost:2101"):
        execute(Config.cluster([address], 0), lambda worker: None)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"process 0 cannot listen on 127.0.0.1:{port}: "):
            execute(Config.cluster([f"127.0.0.1:{port}"], 0, secret=b"x"), lambda worker: None)


def test_listening_for_other_machines_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGAFLOW_SECRET", raising=False)
    with pytest.raises(UsageError, match=r"would listen on 0.0.0.0:1, which .* can reach; set MEGAFLOW_SECRET"):
        execute(Config.cluster(["0.0.0.0:1"], 0), lambda worker: None)


def cluster(processes: int, mains: list[Callable[[Worker], Any]], workers: list[int]) -> list[Any]:
    """Run the processes of one cluster as threads of this one; return what each returned or raised."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    results: list[Any] = [None] * processes

    def process(index: int) -> None:
        config = Config.cluster(addresses, index, workers[index], listeners[index], secret=b"of the tests")
        try:
            results[index] = execute(config, mains[index])
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=process, args=(index,)) for index in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return results


def sending_home(worker: Worker) -> Any:
    with worker.dataflow() as scope:
        captured = scope.to_stream([worker.index]).exchange(lambda x: 0).capture()
    worker.close_inputs()
    while worker.installed_dataflows:
        worker.step_or_park(None)
    return captured.extract()


@pytest.mark.parametrize("workers", [1, 2])
def test_two_processes_of_threads_are_one_cluster(workers: int) -> None:
    first, second = cluster(2, [sending_home] * 2, [workers] * 2)
    assert first == [[(0, list(range(2 * workers)))]] + [[]] * (workers - 1)
    assert second == [[]] * workers


def test_unequal_numbers_of_workers_are_refused_on_both_sides() -> None:  # engine case 49
    for result in cluster(2, [sending_home] * 2, [1, 2]):
        assert isinstance(result, ConfigMismatch), result
        assert "1" in str(result) and "2" in str(result) and "worker" in str(result)


def test_a_value_that_cannot_travel_names_its_type_the_operator_and_the_remedy() -> None:  # engine case 54
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            scope.to_stream([threading.Lock()] if worker.index == 0 else []).exchange(lambda lock: 1)

    first, second = cluster(2, [main] * 2, [1, 1])
    assert type(first).__name__ == "CannotTravel", first
    assert "lock" in str(first) and "register" in str(first), str(first)
    assert first.__notes__[0].startswith(f"in operator 'Exchange' ({__file__}:")
    assert isinstance(second, PeerFailed) and "worker 0 at 127.0.0.1:" in str(second)

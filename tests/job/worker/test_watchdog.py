"""A worker that stays in one step for long is noticed. A worker that steps or waits is not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from megaflow.job.worker.process.watchdog import BUSY_SECONDS, Watchdog

WAIT_SECONDS = 90.0


@contextmanager
def in_user_code(watchdog: Watchdog, index: int = 1) -> Iterator[Any]:
    """Let the watchdog watch a worker that runs this test's code."""
    worker: Any = SimpleNamespace(index=index, steps=5)
    there, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with watchdog.watching(worker):
            there.set()
            go_on.wait(WAIT_SECONDS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert there.wait(WAIT_SECONDS)
        yield worker
    finally:
        go_on.set()
        thread.join(WAIT_SECONDS)


def seen(watchdog: Watchdog, now: float) -> list[tuple[int | None, float, str | None]]:
    return [(each.worker, each.since, each.function) for each in watchdog.look(now).busy]


def test_a_step_that_takes_more_than_a_second_is_told_with_its_beginning() -> None:
    watchdog = Watchdog(lambda sign: None)
    with in_user_code(watchdog):
        assert seen(watchdog, 10.0) == []
        assert seen(watchdog, 10.0 + BUSY_SECONDS - 0.1) == []
        assert seen(watchdog, 10.0 + BUSY_SECONDS) == [(1, 10.0, "work")]
        assert seen(watchdog, 25.0) == [(1, 10.0, "work")]


def test_a_process_that_loads_its_program_has_no_worker() -> None:
    watchdog = Watchdog(lambda sign: None)
    with watchdog.watching():
        watchdog.look(10.0)
        watchdog.look(10.0)
        [step] = watchdog.look(10.0 + BUSY_SECONDS).busy
    assert step.worker is None and step.function is not None and (step.operator, step.record) == (None, None)
    assert watchdog.look(20.0).busy == ()


def test_a_worker_that_steps_is_not_busy_however_much_it_does() -> None:
    watchdog = Watchdog(lambda sign: None)
    with in_user_code(watchdog) as worker:
        for now in range(10, 20):
            worker.steps += 1
            assert seen(watchdog, float(now)) == []


def test_the_end_of_a_long_step_is_told() -> None:
    watchdog = Watchdog(lambda sign: None)
    with in_user_code(watchdog) as worker:
        watchdog.look(10.0)
        assert seen(watchdog, 12.0)
        worker.steps += 1
        assert seen(watchdog, 12.5) == []
        assert seen(watchdog, 14.0) == [(1, 12.5, "work")]


def test_all_workers_of_a_process_are_told() -> None:
    watchdog = Watchdog(lambda sign: None)
    with in_user_code(watchdog, 3), in_user_code(watchdog, 2):
        watchdog.look(10.0)
        assert [worker for worker, _, _ in seen(watchdog, 12.0)] == [2, 3]
    assert seen(watchdog, 14.0) == []


def test_a_sign_is_given_again_and_again() -> None:
    times: list[float] = []
    three = threading.Event()

    def tell(sign: Any) -> None:
        times.append(sign.now)
        if len(times) == 3:
            three.set()

    Watchdog(tell).start()
    assert three.wait(WAIT_SECONDS)
    assert times == sorted(times)

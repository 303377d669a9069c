"""The amount that a source reads ahead of a dataflow that is fast, slow, or waiting for others."""

from megaflow.job.worker.reading.reading_pace import AHEAD_SECONDS, FIRST_LINES, LEAST_LINES, STEP_SECONDS, ReadingPace


def work(pace: ReadingPace, per_second: float, seconds: float) -> list[int]:
    """Read a batch each millisecond if allowed, and process `per_second` lines a second, in order.

    An epoch lasts ten milliseconds. Return the number of lines in flight, each millisecond.
    """
    done, read, found, ends = 0.0, 0, list[int](), list[tuple[int, int]]()
    for step in range(round(seconds / 0.001)):
        busy = step * 0.001
        done = min(read, done + 0.001 * per_second)
        pace.closed(min((epoch for epoch, end in ends if end > done), default=step // 10), busy)
        if pace.room(busy) > 0:
            pace.shipped(step // 10, pace.batch_lines, busy)
            read += pace.batch_lines
            ends.append((step // 10, read))
        found.append(pace.in_flight)
        pace._check()
    return found


def test_a_slow_dataflow_has_about_a_second_of_its_work_in_flight() -> None:
    pace = ReadingPace()
    in_flight = work(pace, 1000.0, 10.0)
    assert max(in_flight) <= FIRST_LINES * 22, "at the start"
    assert 300 <= max(in_flight[-3000:]) <= 1.5 * 1000 * AHEAD_SECONDS, "and then"
    assert pace.batch_lines <= 1.5 * 1000 * STEP_SECONDS, "nor is a step long"


def test_a_very_slow_one_has_a_few_lines() -> None:
    pace = ReadingPace()
    pace.shipped(1, FIRST_LINES, 0.0)
    assert pace.room(1.0) <= 0, "a second has gone by, and nothing is worked off"
    pace.closed(2, FIRST_LINES * 0.5)
    assert pace.room(FIRST_LINES * 0.5) == pace.batch_lines == LEAST_LINES


def test_a_start_is_short_and_what_waits_for_others_is_not_slow() -> None:
    pace = ReadingPace()
    assert pace.room(0.0) > 0
    pace.shipped(1, FIRST_LINES, 0.0)
    assert pace.room(0.0) > 0, "there is time to read on until the first epoch is closed"
    pace.closed(2, 0.001)  # closed after a second in which the worker was busy for a millisecond
    assert pace.room(0.001) == FIRST_LINES * 1000

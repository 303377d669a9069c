"""The reader that plans a query of a job's results, against the launcher's door over real sockets."""

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from megaflow.control.launcher_messages import Ended
from megaflow.job.launcher.outputs.spark_results import SparkResults
from megaflow.spark import results_source
from megaflow.spark.results_source import FIGURES, Poll, ResultsPlace, read_rows
from tests.job.launcher.test_spark_results import SCHEMA, SECRET, rows, serving


def place_of(results: SparkResults) -> ResultsPlace:
    return ResultsPlace("job", results.open_door(True, ""), SCHEMA, SECRET)


def test_a_second_query_of_a_consumer_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_source, "CLAIM_SECONDS", 0.0)
    with serving() as results:
        results.write(7, rows("a", "b"))
        place = replace(place_of(results), consumer="daily", holder="one")
        with closing(Poll(place)) as first, closing(Poll(replace(place, holder="two"))) as second:
            assert first.latest(0) == 2
            with pytest.raises(ValueError, match=r"The consumer 'daily' \(one\) reads the results"):
                second.latest(0)
            monkeypatch.setattr(results_source, "CLAIM_SECONDS", 600.0)
            threading.Timer(0.05, first.close).start()
            assert second.latest(0) == 2


def test_the_first_row_of_a_batch_has_the_figures_of_the_job() -> None:
    pytest.importorskip("pyarrow")
    with serving() as results:
        place = replace(place_of(results), observe="megaflow")
        results.write(7, rows("a", "b", "c"))
        results.note_end(Ended(0, lines=5, records=5, keys=2, state_bytes=80))
        with closing(Poll(place)) as poll:
            assert poll.latest(0) == 3
            figures = poll.figures(3)
        assert (figures["rows_in"], figures["rows_out"], figures["state_rows"]) == (5, 3, 2)
        [batch] = read_rows(place, 0, 3, figures)
        assert batch.column(FIGURES).to_pylist() == [figures, None, None]
        [batch] = read_rows(place, 1, 3)
        assert batch.column(FIGURES).null_count == 2


def test_a_query_idles_when_its_job_has_ended() -> None:
    with serving() as results:
        poll = Poll(place_of(results))
        results.write(7, rows("a", "b"))
        assert poll.latest(0) == 2
        assert poll.latest(2) == 2  # the question stays open
        results.await_read(time.sleep)
    door = results._door
    assert door is not None
    door.close()
    with closing(poll):
        assert [poll.latest(2), poll.latest(2)] == [2, 2]


def test_a_query_that_starts_late_idles_at_its_checkpoint() -> None:
    with serving() as results, closing(Poll(place_of(results))) as poll:
        results.write(7, rows("a", "b"))
        assert [poll.latest(0), poll.latest(2)] == [2, 2]
        results.await_read(time.sleep)
    with closing(Poll(place_of(results))) as late:
        late.until_ended = True
        assert [late.latest(2), late.latest(2)] == [2, 2]
    with closing(Poll(place_of(results))) as other, pytest.raises(ValueError, match="the job has ended"):
        other.latest(0)

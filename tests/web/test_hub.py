"""News of a job reach all viewers, each change once."""

import json
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from megaflow.control.job_events import InputEnded, JobEvent
from megaflow.control.reports import Explanation
from megaflow.errors import PeerLost
from megaflow.web import hub as hubs
from megaflow.web.hub import QUEUE_MAX, encoded
from tests.web.serving import SECONDS, Message, News, Page, served, status


@pytest.fixture
def page() -> Iterator[Page]:
    with served() as page:
        yield page


def counts(message: Message) -> int:
    return int(message.data["count"])


def test_a_viewer_gets_a_snapshot_and_then_changes(page: Page) -> None:
    with page.viewer() as viewer:
        first = viewer.next()
        assert first is not None and first.event == "snapshot"
        page.news.coming.put(status("stopping"))
        change = viewer.state("stopping")
        assert (change.event, change.data["states"]) == ("changes", ["running", "stopping"])


def test_two_viewers_get_the_same_bytes(page: Page) -> None:
    with page.viewer() as one, page.viewer() as other:
        for viewer in (one, other):
            viewer.until(lambda message: counts(message) == 1)
        for state in ("a", "b", "c"):
            page.news.coming.put(status(state))
            same = [viewer.state(state) for viewer in (one, other)]
            assert same[0] == same[1]
        assert page.news.watched == 1


def test_messages_have_consecutive_numbers(page: Page) -> None:
    with page.viewer() as viewer:
        ids = []
        for state in "abcdef":
            page.news.coming.put(status(state))
            ids.append(viewer.state(state).id)
    numbers = [int(each.partition("-")[2]) for each in ids]
    assert all(before <= after <= before + 1 for before, after in pairwise(numbers))


def test_a_viewer_that_comes_back_gets_what_it_has_missed(page: Page) -> None:
    with page.viewer() as other, page.viewer() as viewer:
        last = viewer.until(lambda message: counts(message) == 1)
        other.until(lambda message: counts(message) == 1)
        page.news.coming.put(status("missed"))
        missed = other.until(lambda message: "missed" in message.data["states"])
        with page.viewer(last.id) as again:
            assert again.next() == missed


@pytest.mark.parametrize("last", ["", "nonsense", "x-1", "{series}-99", "{series}-", "{series}-0x1", "{series}-²"])
def test_a_viewer_with_an_unknown_number_gets_a_snapshot(page: Page, last: str) -> None:
    with page.viewer() as viewer:
        series = viewer.until(lambda message: counts(message) == 1).id.partition("-")[0]
        with page.viewer(last.format(series=series)) as again:
            first = again.next()
            assert first is not None and first.event == "snapshot"


def test_a_viewer_that_has_missed_too_much_gets_a_snapshot(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "PERIOD_SECONDS", 0.01)
    with page.viewer() as viewer:
        last = viewer.until(lambda message: counts(message) == 1)
        for number in range(QUEUE_MAX + 2):
            page.news.coming.put(status(str(number)))
            viewer.state(str(number))
        with page.viewer(last.id) as again:
            first = again.next()
            assert first is not None and first.event == "snapshot"


def test_events_that_the_watcher_repeats_are_taken_once(page: Page) -> None:
    event = JobEvent(1, 5, 0.0, InputEnded())
    with page.viewer() as viewer:
        for news in (event, event, JobEvent(1, 4, 0.0, InputEnded()), JobEvent(2, 1, 0.0, InputEnded()), status("x")):
            page.news.coming.put(news)
        assert counts(viewer.until(lambda message: "x" in message.data["states"])) == 1 + 2 + 1


def test_events_without_a_number_are_always_taken(page: Page) -> None:
    with page.viewer() as viewer:
        for news in (JobEvent(0, 0, 0.0, InputEnded()), JobEvent(0, 0, 0.0, InputEnded()), status("x")):
            page.news.coming.put(news)
        assert counts(viewer.until(lambda message: "x" in message.data["states"])) == 1 + 2 + 1


def test_without_viewers_the_job_is_not_asked(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "IDLE_SECONDS", 0.1)
    assert page.request("/livez").status == page.request("/readyz").status == page.request().status == 200
    assert page.news.watched == 0
    with page.viewer() as viewer:
        viewer.until(lambda message: counts(message) == 1)
    assert page.news.idle.acquire(timeout=SECONDS)
    with page.viewer() as viewer:
        viewer.until(lambda message: counts(message) == 2)
    assert page.news.watched == 2


def test_a_scrape_gets_a_new_status_and_uses_it_for_a_while(page: Page) -> None:
    assert page.request("/metrics").body == "news_total 1\n"
    assert page.request("/metrics").status == 200
    assert page.news.watched == 1


def test_the_end_of_the_job_reaches_the_viewers_after_its_last_state(page: Page) -> None:
    with page.viewer() as viewer:
        page.news.coming.put(status("ending"))
        page.news.coming.put(None)
        last = viewer.until(lambda message: message.data["ended"])
        assert last.data["states"][-1] == "ending"
        farewell = viewer.next()
        assert farewell is not None and (farewell.event, farewell.data["text"]) == ("ended", "The job has ended.")
        assert viewer.next() is None
    assert page.hub.ended.is_set()


def test_a_viewer_that_comes_after_the_end_gets_the_last_state(page: Page) -> None:
    with page.viewer() as viewer:
        page.news.coming.put(None)
        viewer.until(lambda message: message.event == "ended")
    with page.viewer() as viewer:
        events = [message.event for message in iter(viewer.next, None)]
    assert events == ["snapshot", "ended"]
    assert page.request("/readyz").status == 503
    assert page.request("/livez").status == 200


def test_closing_the_server_sends_the_reason(page: Page) -> None:
    with page.viewer() as viewer:
        viewer.until(lambda message: counts(message) == 1)
        page.server.close("The job has failed: no.")
        farewell = viewer.until(lambda message: message.event == "ended")
        assert farewell.data["text"] == "The job has failed: no."
        assert viewer.next() is None


def test_the_launcher_alone_says_how_its_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "AGAIN_SECONDS", 0.01)
    with served(in_launcher=True) as page, page.viewer() as viewer:
        viewer.until(lambda message: counts(message) == 1)
        for _ in range(2):
            page.news.coming.put(None)
            assert page.news.idle.acquire(timeout=SECONDS)  # the watcher has found the end before the launcher
        page.server.close("The job has failed: no.")
        farewell = viewer.until(lambda message: message.event == "ended")
        assert farewell.data["text"] == "The job has failed: no."


def test_closing_the_page_alone_does_not_end_the_job_for_viewers(page: Page) -> None:
    with page.viewer() as viewer:
        viewer.until(lambda message: counts(message) == 1)
        page.server.close("The page has been closed.", has_ended=False)
        while (message := viewer.next()) is not None:
            assert not message.data.get("ended")


def test_a_job_that_cannot_be_watched_ends_the_page_with_the_reason() -> None:
    class Lost(News):
        def watch(self) -> Iterator[JobEvent]:  # type: ignore[override]
            raise PeerLost("the job is <gone>")
            yield

    with served(news=Lost()) as page, page.viewer() as viewer:
        assert viewer.until(lambda message: message.event == "ended").data["text"] == "the job is <gone>"


def test_a_viewer_learns_why_output_stands_still() -> None:
    asked = threading.Event()

    def explain() -> Explanation:
        asked.set()
        return Explanation("job", None, None, False, (), ())

    with served(explain=explain) as page, page.viewer() as viewer:
        page.news.coming.put(status("stands still"))
        viewer.until(lambda message: counts(message) == 3)
    assert asked.is_set()


def test_a_message_is_one_line_of_plain_json() -> None:
    text = "</script>\n\r\u2028 \udcff ü"
    line = encoded({"text": text})
    assert not {*b"\r\n"} & {*line}  # which end a line of server-sent events; U+2028 does not
    assert json.loads(line)["text"] == text.replace("\udcff", "?")
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            encoded({"x": value})


def test_a_slow_viewer_is_given_a_snapshot_when_it_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket takes some messages and its queue some more; the rest would not fit."""
    monkeypatch.setattr(hubs, "PERIOD_SECONDS", 0.01)
    with served(padding=2_000_000) as page, page.viewer() as slow, page.viewer() as quick:
        for number in range(QUEUE_MAX + 12):
            page.news.coming.put(status(str(number)))
            quick.state(str(number))
        events = []
        slow.until(lambda message: events.append(message.event) or str(QUEUE_MAX + 11) in message.data["states"])
    assert "snapshot" in events[1:]

"""The page in a real Chromium, served by the real server; the job is pretended.

`tests/cluster/test_page.py` has the page of a real job.
"""

import contextlib
import queue
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megaflow.control import job_events as events
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import BusyWorker, Explanation, HeldBy, JobStatus, JoiningStatus, MissingPartition
from megaflow.web.access import Access
from megaflow.web.hub import Hub
from megaflow.web.server import Door, PageServer
from megaflow.web.view import View
from tests.web.browser import Browser, axe_source, browsing
from tests.web.clicks import Clicker
from tests.web.pretended import PretendedJob

pytestmark = pytest.mark.slow

News = JobEvent | JobStatus
TOKEN = "a-token-of-the-tests"
FRAME_MS = 50.0
BLUE = 0, 114, 178, 255  # worker 0's colour at full brightness, which bins in flight have
SPARE = 150  # elements or listeners: what is pinned or chosen differs; 300 clicks would leave more
SHORT_MINUTES = 3  # of the past that a page shows at once


class NoMetrics:
    """Metrics that nobody reads here."""

    def take(self, news: News) -> None:
        pass

    def text(self, accept: str) -> tuple[bytes, str]:
        return b"", "text/plain"


class Served:
    """The page of a pretended job at a port. The test gives the news."""

    def __init__(self, job: PretendedJob, port: int = 0, control: bool = False) -> None:
        self.job = job
        self.explanation: Explanation | None = None
        self.steered: queue.SimpleQueue[tuple[str, dict[str, object]]] = queue.SimpleQueue()
        self._coming: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.view = View(job.job, "apps/wordcount.py", "1.0", "--job orders", control)
        listener = socket.create_server(("127.0.0.1", port))
        self.access = Access("127.0.0.1", listener.getsockname()[1], TOKEN, control, "machine")
        self.url = self.access.link("127.0.0.1")
        self.hub = Hub(self._watch, lambda: self.explanation, self._stop, self.view, NoMetrics())
        self._server = PageServer([Door(listener, self.access, True)], self.hub, lambda: "", self._steer)
        self._server.start()

    def _watch(self) -> Iterator[News]:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                if (news := self._coming.get(timeout=0.05)) is None:
                    return
                yield news

    def _steer(self, command: str, values: dict[str, object]) -> object:
        self.steered.put((command, values))
        return {}

    def say(self, *news: News) -> None:
        """Give news of the present to the page."""
        self.job.now = time.time()
        for each in news:
            self._coming.put(each)

    def seconds(self, count: int = 1, moved: int = 0) -> None:
        """Let so many seconds pass in the job, up to now; the page sees them at once."""
        self.job.now = float(int(time.time()) - count)
        for _ in range(count):
            for news in self.job.second(moved):
                self.view.take(news, self.job.now)
        self.say(self.job.status())

    def close(self) -> None:
        self._server.close("The job has ended.")


@contextlib.contextmanager
def served(job: PretendedJob, port: int = 0, control: bool = False) -> Iterator[Served]:
    page = Served(job, port, control)
    try:
        yield page
    finally:
        page.close()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A window without errors at the end of the test."""
    window.emulate(1280, 900)
    window.errors()
    yield window
    assert window.errors() == []
    window.driver.get("about:blank")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))


def busy_job(page: Served) -> None:
    """Show some minutes with moves, a plan, a join, a failure, and output that stands still."""
    job = page.job
    job.stuck = True
    held = HeldBy("count", "apps/wordcount.py:17", "input 0", 1, 5, 3, "record")
    page.explanation = Explanation("orders", 9, 5, False, (held,))
    page.seconds(SHORT_MINUTES * 60, moved=1)
    page.say(job.event(events.PlanBegun(1, "batched", 2, "pid 7")), *job.move([(3, job.table[3], 1)]))
    page.say(job.event(events.JoinBegun(1)), job.event(events.RequestRefused("add-workers", "No port is free.")))
    job.busy = (BusyWorker((1,), 77, 12.0, "busy", "fold", "app.py:12", "count", "'river'"),)
    page.say(job.status())


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_keeps_the_rules_of_accessibility(browser: Browser, axe: str, width: int, dark: bool) -> None:
    browser.emulate(width, 900, dark)
    with served(PretendedJob(operators=("count", "join")), control=True) as page:
        busy_job(page)
        browser.open(page.url)
        browser.until_text("#workers", "worker 3")
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; });")
        browser.until("return document.querySelector('#timeline-table table') !== null")
        browser.run("document.querySelector('#timeline .plan:not([hidden])').click()")
        browser.until_text("#account", "Move 2 bins")
        browser.until_text("#still", "apps/wordcount.py:17")
        assert browser.violations(axe) == []
        browser.run("document.querySelector('#workers td.actions button').click()")
        browser.until_text("#confirm", "move-bins --drain 0")
        assert browser.violations(axe) == []
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert "NaN" not in browser.text("body") and "undefined" not in browser.text("body")


def test_names_and_keys_stay_text(browser: Browser) -> None:
    script = "<script>window.ran = 1</script>"
    image = "<img src=x onerror='window.ran = 1'>"
    job = PretendedJob(operators=("__proto__", script), job=f"job {script}", keys=(image, script))
    job.stuck = True
    with served(job) as page:
        held = HeldBy(script, f"{image}:17", "input 0", 1, 5, 3, "record")
        page.explanation = Explanation("orders", 9, 5, False, (held,), output=script)
        page.seconds(20)
        page.say(job.event(events.RequestRefused(image, script)))
        browser.open(page.url)
        browser.until_text("#still table", f"{script}\t{image}:17")
        browser.until_text("#job", script)
        browser.until_text("#bin", image)
        assert browser.text("#operators").split("\n") == ["__proto__", script]
        browser.until("return document.querySelector('#timeline .refused') !== null")
        browser.run("document.querySelector('#timeline .refused').click()")
        browser.until_text("#account", script)
        assert browser.run("return window.ran === undefined && document.querySelectorAll('script').length === 2")


def test_bin_in_flight_has_both_colours_and_then_flips(browser: Browser) -> None:
    browser.emulate(1280, 900, reduced=True)
    with served(PretendedJob(bins=64, workers=2)) as page:
        page.seconds(2)
        browser.open(page.url)
        browser.until_text("#legend", "worker 0\n32")
        columns = int(browser.run("return document.getElementById('cells').dataset.columns"))
        begun, arrived, done = page.job.move([(3, 0, 1)])
        page.say(begun)
        browser.until_text("#bin", "In flight\n1")
        old, new = browser.pixel(columns, 3, 0.1, 0.1), browser.pixel(columns, 3, 0.8, 0.5)
        assert old == ",".join(map(str, BLUE))
        assert new != old
        drawn = "return Number(document.getElementById('cells').dataset.drawn)"
        count = browser.run(drawn)
        page.say(arrived, done)
        browser.until_text("#legend", "worker 0\n31")
        browser.until(f"{drawn} > arguments[0]", count)
        assert browser.pixel(columns, 3, 0.1, 0.1) != old


def test_big_grid_draws_a_frame_in_50_ms(browser: Browser) -> None:
    with served(PretendedJob(bins=65_536, workers=64)) as page:
        page.seconds(1)
        browser.open(page.url)
        browser.until_text("#legend", "worker 63")
        frames: list[tuple[float, float]] = []
        drawn = 0
        for _ in range(8):
            page.seconds(1, moved=512)
            read = "const [cells, body] = [document.getElementById('cells').dataset, document.body.dataset];"
            drawn = browser.until(f"{read} return Number(cells.drawn) > arguments[0] ? Number(cells.drawn) : 0", drawn)
            frames.append(browser.run(f"{read} return [Number(cells.frame), Number(body.frame)]"))
        bins, rest = (statistics.quantiles(column, n=4)[0] for column in zip(*frames))
        assert bins + rest <= FRAME_MS, frames  # the lower quartile: other processes take the machine at times


def test_keyboard_reaches_everything(browser: Browser) -> None:
    with served(PretendedJob(operators=("count", "join"))) as page:
        page.seconds(30, moved=1)
        browser.open(page.url)
        browser.tab_to("[role=tab]")
        browser.press("ARROW_RIGHT")
        browser.until("return document.activeElement.textContent === 'join'")
        browser.tab_to("#bins")
        browser.press("ARROW_RIGHT", "ARROW_RIGHT", "ENTER")
        browser.until_text("#bin", "Bin 2")
        browser.until_text("#said", "Bin 2")
        browser.tab_to("#timeline button")
        browser.press("ARROW_LEFT", "ARROW_LEFT", "ENTER")
        browser.until("return !document.getElementById('account').hidden")
        browser.press("ESCAPE")
        browser.until("return document.getElementById('account').hidden")
        browser.tab_to("#follow")
        browser.press("ENTER")
        browser.until("return document.getElementById('follow').getAttribute('aria-pressed') === 'false'")


def test_lost_connection_is_shown_and_heals(browser: Browser) -> None:
    job = PretendedJob()
    with served(job) as page:
        page.seconds(3)
        browser.open(page.url)
        port = page.access.port
        browser.run("window.kept = true")
        cut(page)
        browser.until("return !document.getElementById('lost').hidden")
        assert "Connection lost" in browser.text("#lost")
    again = waiting_for_port(lambda: Served(job, port))
    try:
        again.seconds(3)
        browser.until("return document.getElementById('lost').hidden")
        browser.until_text("#connection", "Live")
        assert browser.run("return window.kept"), "the page was not loaded again"
    finally:
        again.close()


def cut(page: Served) -> None:
    """End the server as a crash does: viewers get no last message."""
    page.hub._viewers.clear()  # type: ignore[attr-defined]
    page.close()


def waiting_for_port(start: Callable[[], Served]) -> Served:
    """Start a server at a port that has just been closed."""
    while True:
        try:
            return start()
        except OSError:
            time.sleep(0.1)


def test_output_that_stands_still_names_file_and_line(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        held = HeldBy("count", "apps/wordcount.py:17", "input 0", 1, 5, 3, "record")
        page.explanation = Explanation("orders", 9, 5, False, (held,))
        page.job.stuck = True
        page.seconds(20)
        browser.open(page.url)
        browser.until_text("#still", "apps/wordcount.py:17")
        assert "megaflow control explain --job orders" in browser.text("#still")
        page.job.stuck = False
        page.seconds(2)
        browser.until("return document.getElementById('still').hidden")


def test_a_file_that_no_process_can_open_is_named_until_it_can(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        why = "'/in/<b>a.log' cannot be opened: Permission denied"
        page.job.missing = (MissingPartition("", why, 1, (0, 1, 2, 3), 14),)
        page.seconds(2)
        browser.open(page.url)
        browser.until_text("#still", f"{why} (workers 0, 1, 2, 3): 14 bytes are not read; worker 1 tries again")
        assert "Some of the input cannot be read" in browser.text("#still")
        page.job.missing = ()
        page.seconds(2)
        browser.until("return document.getElementById('still').hidden")


def test_a_process_that_waits_for_a_slot_is_shown_until_it_is_started(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        why = "1 queued: no free slot: 2 worker processes need 2 slots, but Spark has 1"
        page.job.joining = (JoiningStatus("", None, 3.0, (), why), JoiningStatus("h:1", 7, 3.0, (), "it loads"))
        page.seconds(2)
        browser.open(page.url)
        browser.until_text("#still", why)
        assert "it loads" not in browser.text("#still")
        page.job.joining = ()
        page.seconds(2)
        browser.until("return document.getElementById('still').hidden")


def test_hidden_page_asks_for_nothing(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        page.seconds(2)
        browser.open(page.url)
        first = browser.driver.current_window_handle
        browser.driver.switch_to.new_window("tab")
        deadline = time.monotonic() + 120
        while page.hub._viewers:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "the hidden page still has a connection"
            time.sleep(0.05)
        browser.driver.close()
        browser.driver.switch_to.window(first)
        browser.until_text("#connection", "Live")


def test_button_steers_after_a_confirmation(browser: Browser) -> None:
    with served(PretendedJob(), control=True) as page:
        page.seconds(2)
        browser.open(page.url)
        browser.until_text("#workers", "Drain")
        browser.run("document.querySelector('#workers td.actions button').click()")
        browser.until_text("#confirm", "megaflow control move-bins --drain 0 --job orders")
        assert page.steered.empty()
        browser.press("TAB", "ENTER")
        assert page.steered.get(timeout=120) == ("drain", {"worker": 0})
        browser.until_text("#toast", "Done")


def test_page_without_control_has_no_buttons_that_steer(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        page.seconds(2)
        browser.open(page.url)
        browser.until_text("#workers", "Copy drain")
        assert browser.run("return document.querySelectorAll('#bins-actions button, #workers .danger').length") == 0


def test_clicks_leave_nothing_behind(browser: Browser) -> None:
    with served(PretendedJob(operators=("count", "join")), control=True) as page:
        busy_job(page)
        browser.open(page.url)
        clicker = Clicker(browser, random.Random(1))

        def held_after(clicks: int) -> dict[str, float]:
            for _ in range(clicks):
                page.say(page.job.status())
                clicker.click()
            return clicker.held()

        before, after = held_after(100), held_after(300)
        for name in ("nodes", "listeners"):
            assert after[name] - before[name] < SPARE, (before, after)


def test_open_tables_keep_their_elements(browser: Browser) -> None:
    with served(PretendedJob()) as page:
        page.seconds(100)
        browser.open(page.url)
        browser.run("for (const details of document.querySelectorAll('details')) details.open = true;")
        browser.until("return ['bins', 'charts'].every((name) => document.querySelector(`#${name}-table td`))")
        browser.run("""
        globalThis.cells = [...document.querySelectorAll("#bins-table td, #charts-table td")];
        globalThis.texts = cells.map((cell) => cell.textContent);
        """)
        page.seconds(2)
        browser.until("return cells.some((cell, place) => cell.textContent !== texts[place])")
        assert browser.run("return cells.filter((cell) => !cell.isConnected).length") == 0


def test_cursor_is_one_time_in_all_bands(browser: Browser, tmp_path: Path) -> None:
    with served(PretendedJob()) as page:
        page.seconds(100)
        browser.open(page.url)
        page.seconds(1, moved=8)
        browser.until("return document.querySelector('#timeline .step:not([hidden])') !== null")
        browser.run("""
        const over = document.querySelectorAll(".u-over")[1];
        const place = over.getBoundingClientRect();
        over.dispatchEvent(new MouseEvent("mousemove", { clientX: place.left + place.width / 2, clientY: place.top + 20,
          bubbles: true }));
        """)
        browser.until("return !document.querySelector('#timeline .cursor').hidden")
        moment = browser.text("#timeline .cursor")
        browser.until_text("#bins-time", f"at {moment}")

"""The page of a real job in a real Chromium: what happens to the job is on the page."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import WORDCOUNT, Run, wait_until
from tests.web.browser import Browser, axe_source
from tests.web.serving import visitor_of
from tests.web.tunnel import tunnel_to

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LINK = re.compile(r"watch the job at (\S+)")
WAIT_SECONDS = 180.0


def link(run: Run) -> str:
    """Return the page's address, which the launcher prints."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := LINK.search("".join(run.said))):
        assert time.monotonic() < deadline and run.process.poll() is None, run.said
        time.sleep(0.05)
    return found[1]


def control(run: Run, *words: str) -> None:
    done = run.control(*words)
    assert done.returncode == 0, done.stderr


def bins_of(browser: Browser, worker: int, count: int) -> None:
    """Wait until the legend shows that a worker owns so many bins."""
    script = """return [...document.querySelectorAll("#legend li")].some((each) => each.innerText.split("\\n").join(" ")
        .trim() === `worker ${arguments[0]} ${arguments[1]}`)"""
    browser.until(script, worker, count)


def kinds(browser: Browser) -> set[str]:
    """Return the kinds of entries in the timeline."""
    found = browser.run("return [...document.querySelectorAll('.entry')].map((each) => each.classList[1])")
    return set(found)


def test_page_shows_moves_joins_leaves_and_a_crash(
    start: Callable[..., Run], text: Path, tmp_path: Path, browser: Browser
) -> None:
    words = ("--lines", str(text), "--rate", "10", "--output", "none", "--name", "count", "--processes", "2")
    durable = ("--state", str(tmp_path / "kept"), "--checkpoint-every", "1")
    run = start(WORDCOUNT, *words, *durable, "--web", "0", "--web-control")
    browser.open(link(run))
    browser.until_text("#workers", "worker 1")
    bins_of(browser, 0, 128)
    browser.until("return document.querySelector('.entry.checkpoint') !== null")

    control(run, "move-bins", "--bins", "0-9", "--to", "1")
    bins_of(browser, 1, 133)
    browser.until("return document.querySelector('.entry.plan:not(.open)') !== null")

    control(run, "add-workers", "1", "--balance")
    browser.until_text("#workers", "worker 2")
    bins_of(browser, 2, 85)
    control(run, "remove-workers", "--id", "2")
    browser.until("return !document.getElementById('workers').innerText.includes('worker 2')")
    browser.until("return document.querySelector('.entry.leave:not(.open)') !== null")

    browser.run("document.querySelector('#workers td.actions button').click()")  # Drain worker 0
    browser.until_text("#confirm", "move-bins --drain 0")
    browser.press("TAB", "ENTER")
    bins_of(browser, 1, 256)

    victim = run.status()["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    browser.until("return document.querySelector('.entry.restart:not(.open)') !== null")
    browser.until("return document.getElementById('state').dataset.state === 'running'")
    assert {"plan", "join", "leave", "checkpoint", "restart", "start"} <= kinds(browser)
    assert "NaN" not in browser.text("body") and "undefined" not in browser.text("body")

    control(run, "stop")
    assert run.end()[0] == 0
    browser.until_text("#state", "Ended")


def begin(start: Callable[..., Run], text: Path) -> Run:
    """Start a job of two workers with a page that steers, which has moved bins and refused a command."""
    words = ("--lines", str(text), "--rate", "10", "--output", "none", "--name", "count", "--processes", "2")
    run = start(WORDCOUNT, *words, "--web", "0", "--web-control")
    run.reading()
    control(run, "move-bins", "--bins", "0-9", "--to", "1")
    assert run.control("remove-workers", "--id", "77").returncode == 1
    return run


def test_page_of_a_real_job_is_accessible(
    start: Callable[..., Run], text: Path, tmp_path: Path, browser: Browser
) -> None:
    axe = axe_source(tmp_path)
    run = begin(start, text)
    for dark, width in ((False, 1280), (True, 1280), (False, 400), (True, 400)):
        browser.emulate(width, 900, dark)
        browser.open(link(run))
        bins_of(browser, 1, 133)
        browser.until("return document.querySelector('.entry.plan:not(.open)') !== null")
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; });")
        browser.until("return document.querySelector('#timeline-table table') !== null")
        browser.run("document.querySelector('.entry.plan').click()")
        browser.until_text("#account", "Move 5 bins")
        assert browser.violations(axe) == [], (dark, width)
        browser.until("return document.querySelector('#workers td.actions button') !== null")
        browser.run("document.querySelector('#workers td.actions button').click()")
        browser.until_text("#confirm", "move-bins --drain 0")
        assert browser.violations(axe) == [], (dark, width)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), (dark, width)


def shown_entries(browser: Browser) -> Counter[str]:
    """Return the titles of the timeline's entries, each with its number."""
    script = "return [...document.querySelectorAll('.entry')].map((each) => each.getAttribute('aria-label'))"
    return Counter(each.partition(", ")[0] for each in browser.run(script))


def test_cut_connection_heals_and_the_timeline_stays_exact(
    start: Callable[..., Run], text: Path, browser: Browser
) -> None:
    run = begin(start, text)
    page = visitor_of(link(run))

    def heals(bins: int) -> None:
        """Wait until the page is live again, and has what a viewer without a break has, once each."""
        browser.until("return document.getElementById('lost').hidden")
        browser.until_text("#connection", "Live")
        bins_of(browser, 1, bins)
        with page.viewer() as viewer:
            timeline = viewer.shows(lambda document: "timeline" in document)["timeline"].values()
        wanted = Counter(each["title"].partition(", ")[0] for each in timeline)
        wait_until(lambda: shown_entries(browser) == wanted)
        assert browser.run("return window.kept"), "the page was not loaded again"

    with tunnel_to(page.port) as tunnel:
        browser.open(link(run).replace(f":{page.port}", f":{tunnel.port}"))
        browser.run("window.kept = true; document.querySelector('#windows button:last-child').click()")  # six hours
        bins_of(browser, 1, 133)
        for first, bins in ((20, 138), (40, 143)):  # with a short break, then with a long one
            tunnel.cut()
            browser.until("return !document.getElementById('lost').hidden")
            assert "Connection lost" in browser.text("#lost")
            control(run, "move-bins", "--bins", f"{first}-{first + 9}", "--to", "1")
            tunnel.mend()
            heals(bins)
        tunnel.stall()  # no error tells the browser: only the silence does
        browser.until("return !document.getElementById('lost').hidden")
        control(run, "move-bins", "--bins", "60-69", "--to", "1")
        tunnel.mend()
        heals(148)


def test_keyboard_alone_looks_and_steers(start: Callable[..., Run], text: Path, browser: Browser) -> None:
    run = begin(start, text)
    browser.open(link(run))
    bins_of(browser, 1, 133)
    browser.until("return document.querySelector('#workers td.actions button') !== null")
    browser.tab_to("#bins")
    browser.press("ARROW_RIGHT", "ENTER")
    browser.until_text("#bin", "Bin 1")
    browser.until_text("#said", "Bin 1: worker 1")
    browser.tab_to("#legend button")
    browser.press("ENTER")
    browser.until("return document.activeElement.getAttribute('aria-pressed') === 'true'")
    browser.tab_to("#timeline button")
    browser.press("HOME", "ENTER")
    browser.until("return !document.getElementById('account').hidden")
    browser.press("ESCAPE")
    browser.until("return document.getElementById('account').hidden")
    browser.tab_to("#timeline-table summary")
    browser.press("ENTER")
    browser.until_text("#timeline-table", "Refused: remove-workers")
    browser.tab_to("#workers td.actions button")
    browser.press("ENTER")
    browser.until_text("#confirm", "move-bins --drain 0")
    browser.press("ESCAPE")
    browser.until("return !document.getElementById('confirm').open")
    browser.tab_to("#workers td.actions button")
    browser.press("ENTER", "TAB", "ENTER")  # the focus is on Cancel; the next one is Run
    bins_of(browser, 1, 256)
    browser.until_text("#toast", "Done: move-bins --drain 0")
    browser.tab_to("#workers-actions .danger")
    browser.press("ENTER", "TAB", "ENTER")
    browser.until_text("#state", "Ended")
    assert run.end()[0] == 0

"""A visitor of the page who clicks on everything there is, at random, with a real mouse; and what the tab holds.

Scripts run by the browser's own protocol and return plain values. The driver's way would keep each element that a
script returns.
"""

import json
import random
from pathlib import Path
from typing import Any

from tests.web.browser import Browser

PLACES = (
    "#bins", "#bins", "#bins", ".entry:not([hidden])", ".entry:not([hidden])", "#operators button", "#legend button",
    "#windows button", "#follow", "#theme", "summary", "#account button", "#bin button", "#bins-actions button",
    "#workers button", "#workers-actions button", "#charts .u-over", "#timeline .track",
)  # fmt: skip
HARMLESS = ("move-bins --b", "checkpoint")  # commands that are run; all others are cancelled
# The middle of a random one of such elements, or a random point in it if it is large. A dialog hides all else.
AIM = """
(([place, which, right, down, harmless]) => {
    const dialog = document.getElementById("confirm");
    const text = dialog.querySelector("code")?.textContent.replace("megaflow control ", "") ?? "";
    const answer = harmless.some((each) => text.startsWith(each)) ? "button:last-of-type" : "button:first-of-type";
    const found = [...document.querySelectorAll(dialog.open ? `#confirm ${answer}` : place)]
        .filter((each) => each.getClientRects().length);
    if (!found.length) return null;
    const target = found[Math.floor(which * found.length)];
    target.scrollIntoView({ block: "center", behavior: "instant" });
    const box = target.getBoundingClientRect();
    return [box.left + box.width * right, box.top + box.height * down];
})"""
# All tables open, nothing selected, and the two newest minutes. So two measurements differ by what is left behind.
REST = """
(() => {
    if (document.getElementById("confirm").open) document.getElementById("confirm").close();
    for (const details of document.querySelectorAll("details")) details.open = true;
    document.activeElement?.blur();
    document.querySelector("#windows [data-span='120']").click();
    for (const place of ["bins", "timeline"]) {
        document.getElementById(place).dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }
    if (document.getElementById("follow").getAttribute("aria-pressed") === "false") {
        document.getElementById("follow").click();
    }
    return new Promise((done) => setTimeout(done, 1500));
})()"""
COLLECTIONS = 8  # the least counts: a message may come between a collection and its measurement


class Clicker:
    """A visitor with a mouse."""

    def __init__(self, browser: Browser, rng: random.Random) -> None:
        self._browser, self._rng = browser, rng
        self.clicks = 0
        self._protocol("Performance.enable")

    def _protocol(self, command: str, **values: Any) -> Any:
        return self._browser.driver.execute_cdp_cmd(command, values)

    def evaluate(self, expression: str) -> Any:
        """Return what a script returns, or what its promise becomes."""
        found = self._protocol("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self) -> None:
        """Click on something; now and then press, draw and let go."""
        rng = self._rng
        while True:
            place = rng.choice(PLACES)
            chances = [rng.random(), rng.uniform(0.1, 0.9), rng.uniform(0.2, 0.8)]
            point = self.evaluate(f"{AIM}({json.dumps([place, *chances, HARMLESS])})")
            if point is not None:
                break
        x, y = point
        self._mouse("mouseMoved", x, y)
        self._mouse("mousePressed", x, y)
        if place.startswith("#charts") and rng.random() < 0.3:
            x += 60
            self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", x, y)
        self.clicks += 1

    def _mouse(self, kind: str, x: float, y: float) -> None:
        held = {} if kind == "mouseMoved" else {"clickCount": 1}
        button = "none" if kind == "mouseMoved" else "left"
        self._protocol("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, **held)

    def held(self) -> dict[str, float]:
        """Return what the tab holds once it is at rest and its garbage is collected."""
        self._mouse("mouseMoved", 0, 0)
        self.evaluate(REST)
        rounds = []
        for _ in range(COLLECTIONS):
            self._protocol("HeapProfiler.collectGarbage")
            metrics = {each["name"]: each["value"] for each in self._protocol("Performance.getMetrics")["metrics"]}
            rounds.append((metrics["JSHeapUsedSize"] / MEGABYTE, metrics["Nodes"], metrics["JSEventListeners"]))
        return dict(zip(("heap", "nodes", "listeners"), map(min, *rounds)))

    def renderer_megabytes(self) -> float:
        """Return the memory of the browser's renderers that they share with no other process."""
        pids = descendants(self._browser.driver.service.process.pid)
        return sum(map(private_megabytes, filter(is_renderer, pids)))


MEGABYTE = 1 << 20


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, directly or not."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def is_renderer(pid: int) -> bool:
    try:
        return b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def private_megabytes(pid: int) -> float:
    """Return the memory of a process that it shares with no other; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

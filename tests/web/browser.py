"""A real Chromium for tests of the page, driven by selenium, and axe-core, which checks accessibility.

Tests are skipped if Chromium, its driver, or npm is missing.
"""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS = 120.0  # for the page to reach a state, on a busy machine
AXE = Path(__file__).parent / "axe"  # the package file, with the hash of what npm installs
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
LOADS_MAX = 20
EXPECTED = ("ERR_", "willReadFrequently", "favicon.ico")
# A pixel of the canvas at a part of a bin's width and height, as a text.
PIXEL = """
const canvas = document.getElementById("cells");
const [columns, bin, right, down] = arguments;
const size = canvas.width / columns;
const x = Math.floor((bin % columns + right) * size), y = Math.floor((Math.floor(bin / columns) + down) * size);
return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].join();
"""


class Browser:
    """One window. Its methods wait, or run a script in the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.until("return document.body.dataset.ready === 'true'")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        """Run a script again and again until its result is true; return it."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.driver, SECONDS, 0.1).until(lambda driver: self.run(script, *arguments))
        except TimeoutException:
            raise AssertionError(f"never true: {script}\nthe page shows:\n{self.text('body')}") from None

    def text(self, selector: str) -> str:
        """Return the text of the first such element as a reader sees it."""
        found: str = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return found

    def until_text(self, selector: str, part: str) -> None:
        """Wait until the text of an element contains a part."""
        self.until("return document.querySelector(arguments[0])?.innerText.includes(arguments[1])", selector, part)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is; names are those of selenium, such as TAB."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focus is in such an element."""
        for _ in range(200):
            if self.run("return document.activeElement?.matches(arguments[0])", selector):
                return
            self.press("TAB")
        raise AssertionError(f"Tab never reaches {selector}.")

    def emulate(self, width: int, height: int, dark: bool = False, reduced: bool = False, scale: float = 1.0) -> None:
        """Take on a size in CSS pixels, a colour scheme and a preference for motion."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def pixel(self, columns: int, bin: int, right: float, down: float) -> str:
        """Return the colour in a bin, at a part of its width and height."""
        found: str = self.run(PIXEL, columns, bin, right, down)
        return found

    def errors(self) -> list[str]:
        """Return what the console has had since the last call.

        Left out are lost connections, a hint about `pixel`, and the icon that Chromium seeks if a page is left early.
        """
        logged = [each["message"] for each in self.driver.get_log("browser")]
        return [text for text in logged if not any(part in text for part in EXPECTED)]

    def violations(self, axe: str) -> list[str]:
        """Return each place that breaks a rule of WCAG 2.2, levels A and AA, as axe-core finds them."""
        for _ in range(LOADS_MAX):  # the page may be loading: what is evaluated then is lost
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
            if self.driver.execute_script("return typeof window.axe === 'object'"):
                break
        script = """
        const done = arguments[arguments.length - 1];
        axe.run(document, { runOnly: arguments[0] }).then(
            (found) => done(found.violations.flatMap((rule) => rule.nodes.map(
                (node) => `${rule.id}: ${node.html} ${node.failureSummary}`))),
            (error) => done([`axe has failed: ${error}`]));
        """
        found: list[str] = self.driver.execute_async_script(script, list(RULES))
        return found


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Yield a window of a new Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    window.set_script_timeout(SECONDS)
    try:
        browser = Browser(window)
        browser.emulate(1280, 900)
        yield browser
    finally:
        window.quit()


def axe_source(folder: Path) -> str:
    """Return axe-core, installed by npm into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: it installs axe-core")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(AXE / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"npm cannot install axe-core: {installed.stderr[-200:]}")
    version = json.loads((folder / "node_modules/axe-core/package.json").read_text())["version"]
    assert version == json.loads((AXE / "package.json").read_text())["dependencies"]["axe-core"]
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")

"""Make the pictures of the page for the documentation, from a real job in a real Chromium.

    python -m tests.web.pictures docs

Writes page.webp, a still, and page-moving.webp, in which a worker joins and gets its share of the bins. Needs Pillow,
which matplotlib brings along.
"""

import base64
import io
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from tests.cluster.processes import ROOT, WORDCOUNT, Run
from tests.cluster.test_page import link
from tests.web.browser import Browser, browsing

WIDTH = 1140
STILL_HEIGHT, MOVING_HEIGHT = 1500, 690
BEFORE_SECONDS = 30.0
PLAYED_SECONDS = 11.0  # by the moving picture, however long the machine takes
LAST_SECONDS = 3.0
BYTES_MAX = 1_500_000


def main(folder: Path) -> None:
    """Run a job, and take the pictures."""
    with TemporaryDirectory() as name, browsing() as browser:
        text = Path(name, "text.txt")
        text.write_text((ROOT / "apps/data/river.txt").read_text(encoding="utf-8") * 2000, encoding="utf-8")
        words = ("--lines", str(text), "--rate", "400", "--output", "none", "--name", "wordcount", "--processes", "2")
        run = Run(Path(name), WORDCOUNT, *words, "--state", f"{name}/kept", "--checkpoint-every", "5", "--web", "0")
        try:
            browser.emulate(WIDTH, MOVING_HEIGHT, dark=True)
            browser.open(link(run))
            browser.until_text("#workers", "worker 1")
            browser.run("document.querySelector('#windows button').click()")
            time.sleep(BEFORE_SECONDS)  # for the charts to have something to show
            take_moving(browser, run, folder / "page-moving.webp")
            browser.emulate(WIDTH, STILL_HEIGHT)
            browser.run("document.querySelector('#timeline .plan:not([hidden])').click()")
            browser.until("return !document.getElementById('account').hidden")
            time.sleep(2.0)  # for the canvas to be drawn at its new size
            picture(browser).save(folder / "page.webp", quality=80, method=6)
        finally:
            run.process.finish()


def take_moving(browser: Browser, run: Run, path: Path) -> None:
    """Take the moving picture, while a worker joins."""
    frames = [picture(browser)]
    adding = run.megaflow("control", "add-workers", "1", "--balance")
    while adding.poll() is None:
        frames.append(picture(browser))
    assert adding.returncode == 0
    browser.until_text("#legend", "worker 2")
    frames.append(picture(browser))
    each = int(PLAYED_SECONDS * 1000 / len(frames))
    durations = [each] * (len(frames) - 1) + [int(LAST_SECONDS * 1000)]
    options: dict[str, Any] = {"quality": 62, "method": 4, "loop": 0, "duration": durations}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    assert path.stat().st_size <= BYTES_MAX, f"{path} has {path.stat().st_size} bytes"


def picture(browser: Browser) -> Image.Image:
    """Return what the window shows."""
    data = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Script in all names, keys and texts of a real job: on its page in a real browser they are text, and nothing runs.

The browser reports what its policy had to stop. So a text that became HTML fails a test also if it was harmless.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import ROOT, Run, wait_until
from tests.cluster.test_page import link
from tests.web.browser import Browser

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RAN = "window.ran=1"
IMAGE = f"<img src=x onerror={RAN}>"
MARKUP = (
    IMAGE, f"</script><script>{RAN}</script>", f'"><svg onload={RAN}>', f"' onmouseover='{RAN}' x='",
    f"<iframe srcdoc='<script>parent.{RAN}</script>'>", f"javascript:{RAN}", "<style>*{display:none}</style>",
    "{{constructor.constructor('window.ran=1')()}}", "&lt;b&gt;&#60;b&#62;",
)  # fmt: skip
KEYS = (*MARKUP, "\u202egnp.exe\u202c", "a\x00b", "\ud800", "x" * 5000, "\r\n\t\x1b[2J", "__proto__", "constructor")
NAMES = (f"</script><script>{RAN}</script>", "__proto__", IMAGE, "constructor", "\u202egnp.exe", "n" * 5000)
SHELL = f"it's $(touch ran) `touch ran` ; touch ran & \"|\n touch ran\\ {IMAGE}"  # the name of a folder

# A file `hold` keeps the process whose id it has in the fold. A file `fail` makes the fold raise.
PROGRAM = """
import os, pathlib, time

HERE, KEYS, NAMES = pathlib.Path({here!r}), {keys!r}, {names!r}


def fold(key, value, total):
    while (HERE / "hold").exists() and (HERE / "hold").read_text() == str(os.getpid()):
        time.sleep(0.02)
    if (HERE / "fail").exists():
        print(NAMES[2], flush=True)
        raise RuntimeError(NAMES[2])
    total = (total or 0) + value
    return total, [(key, total)]


fold.__code__ = fold.__code__.replace(co_name=NAMES[2], co_qualname=NAMES[2])


def dataflow(flow):
    stream = flow.lines().map(lambda line: (KEYS[int(line) % len(KEYS)], 1))
    for name in NAMES:
        stream = stream.stateful_state_machine(fold, bins=8, name=name)
    return stream
"""

# Notes what ran, what the policy stopped, and which elements that no part of the page makes were ever there.
WATCH = """
window.stopped = [];
document.addEventListener("securitypolicyviolation", (event) => {
  stopped.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
new MutationObserver((changes) => {
  for (const added of changes.flatMap((change) => [...change.addedNodes])) {
    if (added.nodeType !== 1) continue;
    for (const each of [added, ...added.querySelectorAll("*")]) {
      const isOwn = each.matches("head *, body > header img, i, b") || !each.matches("img, svg, script, iframe, style");
      const isClean = [...each.attributes].every((attribute) => !attribute.name.startsWith("on"));
      if (!isOwn || !isClean) stopped.push(each.outerHTML.slice(0, 200));
    }
  }
}).observe(document, { childList: true, subtree: true });
"""
HARM = "return [window.ran ?? 0, ...window.stopped]"


@pytest.fixture
def watched(browser: Browser) -> Browser:
    """A browser that notes all harm, from the first moment of each page."""
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    return browser


def begin(start: Callable[..., Run], folder: Path, *words: str) -> Run:
    """Start the hostile job; its program's path has markup also."""
    app = folder / "<" / f"script><svg onload={RAN}>.py"
    app.parent.mkdir()
    app.write_text(PROGRAM.format(here=str(folder), keys=KEYS, names=NAMES))
    text = folder / "numbers.txt"
    text.write_text("\n".join(map(str, range(200_000))))
    return start(
        str(app), "--lines", str(text), "--rate", "500", "--processes", "2", "--output", "none", "--web", "0",
        "--web-control", *words,
    )  # fmt: skip


def shows(browser: Browser, selector: str, part: str) -> None:
    """Wait until some such element has this text, letter for letter."""
    script = """return [...document.querySelectorAll(arguments[0])].some(
        (each) => each.textContent.includes(arguments[1]))"""
    browser.until(script, selector, part)


def test_the_watch_notices_markup_and_script(watched: Browser, start: Callable[..., Run], tmp_path: Path) -> None:
    watched.open(link(begin(start, tmp_path)))
    assert watched.run(HARM) == [0]
    watched.run("document.getElementById('foot').innerHTML = arguments[0]", IMAGE)
    watched.until("return window.stopped.length >= 2")  # the element, and the policy's report
    assert watched.run("return window.ran") is None, "the policy lets no such script run"
    found = list[str]()
    wait_until(lambda: found.extend(watched.errors()) or any("404" in each for each in found))  # there is no image x
    assert any("Content Security Policy" in each for each in found)


def test_hostile_names_and_keys_are_text_everywhere(
    watched: Browser, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = begin(start, tmp_path)
    watched.open(link(run))
    shows(watched, "#program", f"script><svg onload={RAN}>.py")
    (tmp_path / "held").write_text(str(run.reading()["workers"][1]["pid"]))  # the other worker coordinates
    (tmp_path / "held").rename(tmp_path / "hold")
    shows(watched, "#still", "Output has stood still")
    shows(watched, "#still p", f"{IMAGE}' (script><svg onload={RAN}>.py:")  # the function and line
    shows(watched, "#workers td.doing", IMAGE)
    (tmp_path / "hold").unlink()
    watched.until("return document.getElementById('still').hidden")
    tabs = watched.run("return [...document.querySelectorAll('#operators button')].map((each) => each.textContent)")
    assert [*tabs[:5]] == [*NAMES[:5]] and NAMES[5].startswith(tabs[5]) and len(tabs[5]) < 1000

    keys = set[str]()
    for place in range(len(NAMES)):
        watched.run("document.querySelectorAll('#operators button')[arguments[0]].click()", place)
        watched.until("return document.querySelector('#bin h3').textContent === arguments[0]", tabs[place])
        assert tabs[place] in watched.run("return document.getElementById('bins').getAttribute('aria-label')")
        watched.until("return document.querySelectorAll('#bin .keys code').length > 3")
        found = "return [...document.querySelectorAll('#bin .keys code')].map((each) => each.textContent)"
        keys |= set(watched.run(found))
    watched.run("document.getElementById('bins').focus()")
    for bin in range(8):
        watched.until_text("#bin h3", f"Bin {bin}")
        keys |= set(watched.run(found))
        watched.press("ARROW_RIGHT")
    wanted = {repr(key)[:20] for key in KEYS}
    assert {each[:20] for each in keys} <= wanted and len(keys) >= 8, keys
    assert any(key in each for key in MARKUP for each in keys), keys

    watched.run("document.querySelectorAll('details').forEach((each) => { each.open = true; });")
    watched.until("return document.querySelector('#bins-table table') !== null")
    assert watched.run("return getComputedStyle(document.body).display") == "block", "no style of a key holds"
    assert "undefined" not in watched.text("body") and "NaN" not in watched.text("body")
    assert watched.run(HARM) == [0]
    (tmp_path / "fail").touch()
    code, _, said = run.end()
    assert code == 1 and any(IMAGE in line for line in said)
    watched.until_text("#state", "Ended")
    assert watched.run(HARM) == [0]


def commands_of(browser: Browser) -> list[str]:
    """Return all commands that the page shows or copies."""
    script = """
    return [...new Set([...[...document.querySelectorAll(".command code")].map((each) => each.textContent),
        ...[...document.querySelectorAll("#workers td.actions button")].map((each) => each.title)])]
    """
    found: list[str] = browser.run(script)
    return found


def test_copied_commands_are_safe_in_a_shell(
    browser: Browser, start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / SHELL
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", str(folder))
    folder.mkdir(mode=0o700)
    run = begin(start, tmp_path, "--name", "it.is-a_name")
    browser.open(link(run).partition("?")[0])  # without the token: the page copies commands
    browser.until("return document.querySelector('#workers td.actions button') !== null")
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; });")
    browser.until("return document.querySelector('#bins-table .command') !== null")
    browser.run("document.querySelector('.entry').click()")
    browser.run("document.getElementById('bins').focus()")
    browser.press("ENTER")
    browser.until_text("#bin", "Bin 0")
    commands = commands_of(browser)
    assert {each.split(" --job ")[0] for each in commands} >= {
        "megaflow control move-bins --bins 0 --to 1", "megaflow control status --bins",
        "megaflow control add-workers 1 --balance", "megaflow control move-bins --drain 0",
        "megaflow control remove-workers --id 1",
    }  # fmt: skip
    for each in commands:
        words = in_shell(f'megaflow() {{ printf "%s\\0" "$@"; }}\n{each}', tmp_path).stdout.split("\0")[:-1]
        assert words[-4:] == ["--job", "it.is-a_name", "--runtime-dir", str(folder)], each
    assert not list(tmp_path.rglob("ran"))

    origin = browser.run("return location.origin")
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": origin}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    browser.run("document.querySelector('#bins-table .command button').click()")
    browser.until_text("#toast", "Copied.")
    copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied in commands
    done = in_shell(copied, tmp_path, run.environment)
    assert done.returncode == 0 and "job it.is-a_name: running" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("ran"))


def in_shell(command: str, folder: Path, environment: dict[str, str] | None = None) -> Any:
    """Run a command as a user who pastes it does."""
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**(environment or os.environ), "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["sh", "-c", command]
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_job_cannot_have_a_name_for_the_shell(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--name", "x; touch ran")
    wait_until(lambda: run.process.poll() is not None)
    assert run.end()[0] == 2

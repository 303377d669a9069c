"""The documentation is run as a reader would run it: its files written, its commands typed, its Python executed.

Fenced blocks of a page, in their order, in one empty folder that has a copy of `apps/`:

- `python` that begins with a comment such as `# shop.py` is a file. Other Python is executed, in one namespace a page.
- `pycon` is a doctest in the same namespace.
- `console` has commands after `$ `, typed into one shell a page. A command has to exit with 0, or to print what stands
  below it. Durations, rates, sizes, epochs, ports and process numbers may differ; `...` stands for any text, alone in a
  line for any lines.
- `sh` is not run, as it needs another machine or an installation; its `megaflow` commands are parsed.
- A comment `<!-- console` or `<!-- python`, which a reader does not see, is run like a block: it makes the input.
- `<!-- test: spark -->` marks a page that needs Spark. All pages but the README are slow tests.
"""

import doctest
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from megaflow.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^(?:```|<!-- )(?P<language>python|pycon|console|sh)\n(?P<text>.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# ([\w./-]+\.\w+)\b")
UNITS = "seconds?|s|ms|µs|B|kB|MB|GB|KiB|MiB|%"
VARIES = re.compile(
    rf"127\.0\.0\.1:\d+|(?<=\bpid )\d+|(?<=\bepoch )\d+|\d[\d.,]*(?= ?(?:{UNITS})(?!\w))|\d[\d.,]*(?=[\w ]*/s\b)"
)
ANSWER_SECONDS = 120.0
LINE_MAX = 120


class Block(NamedTuple):
    """A block of a page, and the line of the page that it begins in."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")) + 1)
        for found in BLOCK.finditer(text)
    ]


class Shell:
    """A bash that stays, so that variables and background jobs do."""

    def __init__(self, folder: Path) -> None:
        home = folder.with_name(f"{folder.name}.jobs")
        home.mkdir(mode=0o700)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "XDG_RUNTIME_DIR": str(home), "COLUMNS": "100", "TERM": "dumb"}
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, command: str) -> tuple[int, str]:
        """Return the exit code of a command and what it prints, on both outputs."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\036%s\\036' $?\n".encode())
        self._bash.stdin.flush()
        shown, until = b"", time.monotonic() + ANSWER_SECONDS
        while not (ended := re.search(rb"\x1e(\d+)\x1e$", shown)):
            readable, _, _ = select.select([self._bash.stdout], [], [], max(0.0, until - time.monotonic()))
            assert readable, f"no end of {command!r} within {ANSWER_SECONDS} s; it printed: {shown.decode()}"
            more = os.read(self._bash.stdout.fileno(), 65536)
            assert more, f"the shell ended at {command!r}: {shown.decode()}"
            shown += more
        return int(ended[1]), shown[: ended.start()].decode()

    def end(self) -> None:
        """Kill it with all that it has started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """A shell, typed into a folder."""
    made = Shell(folder)
    try:
        yield made
    finally:
        made.end()


def pattern_of(expected: str) -> re.Pattern[str]:
    """What an output has to match, by the rules above."""
    lines = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        literal = re.escape(VARIES.sub("\x00", line.rstrip())).replace(re.escape("..."), ".*")
        lines.append(re.sub(r"(?:\\ )+", r" +", literal) + r"[ ]*\n")
    return re.compile("".join(lines))


def matches(expected: str, shown: str) -> bool:
    """Whether an output is the one that a page shows."""
    plain = "".join(f"{VARIES.sub(chr(0), line.rstrip())}\n" for line in shown.rstrip().splitlines())
    return pattern_of(expected).fullmatch(plain) is not None


def typed(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console with what stands below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        count = 1
        while lines[count - 1].endswith("\\") or (lines[count:] and lines[count].startswith("> ")):
            count += 1
        command = "\n".join(line.removeprefix("> ") if at else line for at, line in enumerate(lines[:count]))
        yield command, "\n".join(lines[count:])


def parse(command: str) -> None:
    """Parse a command of megaflow's without running it. Raises click.UsageError for what it does not know."""
    words = shlex.split(command, comments=True)
    context: click.Context | None = None
    found: click.Command = cli
    while isinstance(found, click.Group):
        context = click.Context(found, parent=context, info_name=words.pop(0))
        if not words or words[0] == "--help":
            return
        name = words[0]
        known = found.get_command(context, name)
        assert known is not None, f"no command {name!r}"
        found = known
    if "--help" not in words:
        found.make_context(words.pop(0), words, parent=context, resilient_parsing=False)


def marks(page: Path) -> list[Any]:
    found = [pytest.mark.cluster] if page.name == "README.md" else [pytest.mark.cluster, pytest.mark.slow]
    return [*found, pytest.mark.spark] if "\n<!-- test: spark -->\n" in page.read_text(encoding="utf-8") else found


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name, marks=marks(page)) for page in PAGES])
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    shutil.copytree(ROOT / "apps", folder / "apps", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    names: dict[str, Any] = {"__name__": "__main__"}
    with shell(folder) as bash:
        for block in blocks(page):
            place = f"{page.name}:{block.line}"
            if block.language == "python" and (named := FILE.match(block.text)):
                path = folder / named[1]
                if path.exists():
                    shown = block.text.partition("\n")[2].split()
                    there = " ".join(path.read_text(encoding="utf-8").split())
                    assert " ".join(shown) in there, f"{place}: {named[1]} is another program"
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(block.text, encoding="utf-8")
                compile(block.text, place, "exec")
            elif block.language == "python":
                exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
            elif block.language == "pycon":
                test = doctest.DocTestParser().get_doctest(block.text, names, page.name, str(page), block.line - 1)
                runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST, verbose=False)
                names.update(test.globs)
                assert not runner.run(test, clear_globs=False).failed, place
                names.update(test.globs)
            elif block.language == "console":
                for command, expected in typed(block.text):
                    code, shown = bash.type(command)
                    if expected.strip():
                        assert matches(expected, shown), f"{place}: $ {command}\n{shown}"
                    else:
                        assert code == 0, f"{place}: $ {command} exits with {code}\n{shown}"
            else:
                for command in re.findall(r"^(?:\w+=\S+ )*(megaflow .*(?:\\\n.*)*)", block.text, re.MULTILINE):
                    parse(command.replace("\\\n", ""))


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "AGENTS.md"], ids=lambda page: page.name)
def test_links_and_names_of_files_hold(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        where = page.parent / path if path else page
        assert where.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(where), f"{page.name}: {target}"
    for named in re.findall(r"`((?:apps|tests|megaflow|docs)/[\w/.]*)`", prose):
        assert (ROOT / named).exists(), f"{page.name}: {named}"
    long = [line for line in text.splitlines() if len(line) > LINE_MAX and not line.startswith("|")]
    assert not long, f"{page.name}: {long}"


@pytest.mark.parametrize(
    "expected, shown, same",
    [
        ("a\nb", "a\nb\n", True),
        ("a\n...\nc", "a\nb\nb\nc\n", True),
        ("a\n...\nc", "a\nc\n", True),
        ("read 3 lines in 0.1 s", "read 3 lines in 12.7 s", True),
        ("3 lines, 0.12 seconds", "3 lines, 1.31 seconds", True),
        ("read 3 lines in 0.1 s", "read 4 lines in 0.1 s", False),
        ("job on 127.0.0.1:80 ...", "job on 127.0.0.1:4711 and on", True),
        ("epoch ...; for ... s", "epoch 7; for 3.4 s", True),
        ("a", "a\nb", False),
    ],
)
def test_outputs_are_compared_by_the_rules(expected: str, shown: str, same: bool) -> None:
    assert matches(expected, shown) is same

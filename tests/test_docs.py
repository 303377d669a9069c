"""Runs the documentation as a reader would: writes its files, types its commands, executes its Python.

The fenced blocks of a page run in order, in one empty folder that has a copy of `apps/` and of `docs/peers/`, the
programs for other systems:

- `python` that begins with a comment such as `# shop.py` is a file. Other Python is executed, in one namespace for
  each page. A file that exists must contain the block, except in a tutorial: there the block is its next version.
- `pycon` is a doctest in the same namespace.
- `console` has commands after `$ `, typed into one shell for each page. A command must exit with 0 or print the text
  below it. Durations, rates, sizes, epochs, ports and process numbers may differ. `...` stands for any text; alone in
  a line it stands for any lines.
- `sh` is not run, because it needs another machine or an installation. Its `megaflow` commands are parsed.
- A comment `<!-- console` or `<!-- python` is invisible to readers. It runs like a block. It may start a job and wait
  for it, but makes no input that readers cannot see.
- `<!-- test: spark -->` marks a page that needs Spark, and `<!-- test: postgres -->` one that needs a server of
  PostgreSQL, whose address is in SHOP. All pages but the README are slow tests.
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
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from megaflow.cli.main import cli
from megaflow.job.job_file import process_start
from tests.cluster.processes import lives, wait_until
from tests.connect.postgres_server import PostgresServer, binaries
from tests.timely.communication.codec.registrations import undone
from tests.words import without_delays

ROOT = Path(__file__).parent.parent
INTERNAL = ("CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md")
SKILL = ROOT / "megaflow" / ".agents" / "skills" / "megaflow" / "SKILL.md"
PAGES = [ROOT / "README.md", SKILL, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:```|<!-- )(?P<language>python|pycon|console|sh)\n(?P<text>.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# ([\w./-]+\.\w+)\b")
UNITS = "seconds?|s|ms|µs|B|kB|MB|GB|KiB|MiB|%"
VARIES = re.compile(
    rf"127\.0\.0\.1:\d+|(?<=\bpid )\d+|(?<=\bepoch )\d+|\d[\d.,]*(?= ?(?:{UNITS})(?!\w))|\d[\d.,]*(?=[\w ]*/s\b)"
)
MAKES_INPUT = re.compile(r"\$ (?:printf|yes|seq|mkdir|cat >) |Path\(.*write_text")
ANSWER_SECONDS = 360.0
LINE_MAX = 120


class Block(NamedTuple):
    """A block of a page, with its first line's number."""

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
    """A persistent bash, in which variables and background jobs remain. It finds the commands of a folder first."""

    def __init__(self, folder: Path, programs: Path, **more: str) -> None:
        home = folder.with_name(f"{folder.name}.jobs")
        home.mkdir(mode=0o700)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "XDG_RUNTIME_DIR": str(home), "COLUMNS": "100", "TERM": "dumb"}
        watched, self._held = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=folder, env={**os.environ, **more, **own}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[watched],
        )  # fmt: skip
        os.close(watched)
        # If this process is killed, the pipe ends, and with it the shell and its loops. The watcher is no job of bash.
        self.type(f"({{ read -r line <&{watched}; kill -KILL 0; }} >/dev/null 2>&1 &)")

    def type(self, command: str) -> tuple[int, str]:
        """Return the exit code of a command and its output on both streams."""
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
        """Kill the shell with all processes that it has started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()
        os.close(self._held)


@contextmanager
def shell(folder: Path, programs: Path = Path(sys.executable).parent, **more: str) -> Iterator[Shell]:
    """A shell in a folder, with the commands of another one and with more environment variables."""
    made = Shell(folder, programs, **more)
    try:
        yield made
    finally:
        made.end()


def pattern_of(expected: str) -> re.Pattern[str]:
    """Return the pattern for an output, by the rules above."""
    lines = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        literal = re.escape(VARIES.sub("\x00", line.rstrip())).replace(re.escape("..."), ".*")
        lines.append(re.sub(r"(?:\\ )+", r" +", literal) + r"[ ]*\n")
    return re.compile("".join(lines))


def matches(expected: str, shown: str) -> bool:
    """Whether an output matches the one on a page."""
    lines = without_delays(f"{shown.rstrip()}\n").rstrip().splitlines()
    plain = "".join(f"{VARIES.sub(chr(0), line.rstrip())}\n" for line in lines)
    return pattern_of(expected).fullmatch(plain) is not None


def typed(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console with the text below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        count = 1
        while lines[count - 1].endswith("\\") or (lines[count:] and lines[count].startswith("> ")):
            count += 1
        command = "\n".join(line.removeprefix("> ") if at else line for at, line in enumerate(lines[:count]))
        yield command, "\n".join(lines[count:])


def parse(command: str) -> None:
    """Parse a command of megaflow without running it. Raises click.UsageError if it is not valid."""
    words = list(takewhile(lambda word: word != ">", shlex.split(command, comments=True)))
    context: click.Context | None = None
    found: click.Command = cli
    while isinstance(found, click.Group):
        context = click.Context(found, parent=context, info_name=words.pop(0), **found.context_settings)
        if not words or words[0] == "--help":
            return
        name = words[0]
        known = found.get_command(context, name)
        assert known is not None, f"no command {name!r}"
        found = known
    if "--help" not in words:
        found.make_context(words.pop(0), words, parent=context, resilient_parsing=False)


def needs(what: str, page: Path) -> bool:
    """Whether a page says that it needs a system that tests may lack."""
    return f"\n<!-- test: {what} -->\n" in page.read_text(encoding="utf-8")


def marks(page: Path) -> list[Any]:
    found = [pytest.mark.cluster] if page.name == "README.md" else [pytest.mark.cluster, pytest.mark.slow]
    if needs("spark", page):
        found.append(pytest.mark.spark)
    if needs("postgres", page):
        there = binaries() and shutil.which("psql") and find_spec("psycopg")
        found.append(pytest.mark.skipif(not there, reason="needs PostgreSQL with psql, and psycopg"))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT / "docs").as_posix() if page.is_relative_to(ROOT / "docs") else page.name


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page), marks=marks(page)) for page in PAGES])
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    shutil.copytree(ROOT / "apps", folder / "apps", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    shutil.copytree(ROOT / "docs" / "peers", folder / "docs" / "peers")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    names: dict[str, Any] = {"__name__": "__main__"}
    with ExitStack() as around:
        around.enter_context(undone())
        more: dict[str, str] = {}
        if needs("postgres", page):
            server = PostgresServer()
            around.callback(server.remove)
            more["SHOP"] = server.url
        bash = around.enter_context(shell(folder, **more))
        for block in blocks(page):
            place = f"{page.name}:{block.line}"
            if block.language == "python" and (named := FILE.match(block.text)):
                path = folder / named[1]
                if path.exists() and page.parent.name != "tutorials":
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
                for command in re.findall(r"^(?:\w+=\S+ )*(megaflow (?:.*\\\n)*.*)", block.text, re.MULTILINE):
                    parse(command.replace("\\\n", ""))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_readers_see_how_the_input_is_made(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    hidden = re.findall(r"^<!-- (?:console|python)\n(.*?)^-->$", text, re.MULTILINE | re.DOTALL)
    seen = set(re.sub(r"^<!-- .*?-->$", "", text, flags=re.MULTILINE | re.DOTALL).replace("\n$ ", "\n").splitlines())
    made = [line.removeprefix("$ ") for block in hidden for line in block.splitlines() if MAKES_INPUT.match(line)]
    assert set(made) <= seen, f"{page.name}: {[line for line in made if line not in seen]}"


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in INTERNAL)], ids=name_of)
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
    long = [line for line in text.splitlines() if len(line) > LINE_MAX and not line.startswith(("|", "description: "))]
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


def test_a_shell_ends_with_the_process_that_types(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.test_docs import Shell
shell = Shell(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}))
shell.type('echo $$ > begun; while :; do sleep 0.1; done')
"""
    typing = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    begun = tmp_path / "begun"
    try:
        wait_until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        shell = int(begun.read_text())
        started = process_start(shell)
        assert started
    finally:
        typing.kill()
        typing.wait()
    wait_until(lambda: not lives(shell, started))

"""Build the documentation site: `make docs`, or `make docs-serve` for a site that follows your edits.

1. The pages are copied to `build/docs` first. README and the other pages of the root become pages of the site, and the
   reference of the command line is written from the commands themselves, and tables of events and messages from the
   code. The tool then needs neither a hook nor an override of a template, so `mkdocs.yml` suits Zensical and Material
   for MkDocs alike.
2. A copy is written only if it has changed. So the served site builds only the pages that you have edited.
3. The built site has the Markdown of each page beside its folder (`state.md` beside `state/`), and `llms.txt`, a list
   of all pages with their first sentences.
"""

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import click
import error_messages
import yaml

from megaflow.cli.help import UNGROUPED
from megaflow.cli.json_records import NAMES
from megaflow.cli.main import cli
from megaflow.control import job_events

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
OF_THE_ROOT = {
    name: name.lower() for name in ("README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md")
}
COPIED = {".css", ".md", ".png", ".svg", ".webp", ".ipynb"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
MARKER = re.compile(r"<!-- docs/build_site.py .*-->")
POLL_SECONDS = 0.5


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the place of each file in the site with its path."""
    yield from ((place, ROOT / name) for name, place in OF_THE_ROOT.items())
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in COPIED:
            yield path.relative_to(ROOT / "docs").as_posix(), path


def moved(text: str, place: str, path: Path, places: dict[Path, str]) -> str:
    """Return a page whose links lead to the places of their targets; a link that leaves the site becomes its text."""

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        file, hash_, anchor = target.partition("#")
        if not file or re.match(r"\w+:", target):
            return found[0]
        to = places.get((path.parent / file).resolve())
        if to is None:
            return words
        return f"{image}[{words}]({posixpath.relpath(to, posixpath.dirname(place) or '.')}{hash_}{anchor})"

    # Blocks of code are in the odd parts. In a table of HTML, cells need the attribute to be read as Markdown.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    prose = [part if at % 2 else LINK.sub(link, part).replace("<td>", '<td markdown="1">')
             for at, part in enumerate(parts)]    # fmt: skip
    return "".join(prose)


def rows_of(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a table of options for each of their groups."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) and not isinstance(parameter, click.Argument):
            groups.setdefault(getattr(parameter, "group", UNGROUPED), []).append(record)
    for group, records in groups.items():
        yield f"\n| {group} | |\n|---|---|"
        for names, text in records:
            plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
            yield f"| `{names.replace('|', chr(92) + '|')}` | {plain} |"


def help_of(command: click.Command, context: click.Context, name: str, level: int) -> Iterator[str]:
    """Yield the page of a command and of the commands below it, line by line."""
    yield f"\n{'#' * level} {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```\n"
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        if "\b" in paragraph:                    # click keeps the lines of such a paragraph
            body = "\n".join(line.strip() for line in paragraph.replace("\b", "").strip("\n").splitlines())
            yield f"```text\n{body}\n```\n"
        else:
            yield " ".join(paragraph.split()).replace("<", "&lt;") + "\n"
    yield from rows_of(command, context)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None, word
            inner = click.Context(found, parent=context, info_name=word, **found.context_settings)
            yield from help_of(found, inner, f"{name} {word}", min(level + 1, 3))


def command_line() -> str:
    """Return the help of all commands as Markdown."""
    context = click.Context(cli, info_name="megaflow", **cli.context_settings)
    return "\n".join(help_of(cli, context, "megaflow", 2))


def messages() -> str:
    """Return all error messages as Markdown."""
    return "\n".join(error_messages.markdown(error_messages.collect()))


def events() -> str:
    """Return a table of the events of a job, from their classes."""
    rows = ["| event | keys | meaning |", "|---|---|---|"]
    for kind in get_args(job_events.Body):
        word = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
        keys = ", ".join(f"`{NAMES.get(field.name, field.name)}`" for field in fields(kind))
        rows.append(f"| `{word}` | {keys} | {' '.join(kind.__doc__.split())} |")
    return "\n".join(rows)


WRITTEN = {
    "reference/command-line.md": command_line,
    "reference/file-formats.md": events,
    "reference/messages.md": messages,
}


def prepare() -> None:
    """Bring `build/docs` up to date."""
    files = dict(sources())
    places = {path.resolve(): place for place, path in files.items()}
    wanted = {
        place: moved(path.read_text("utf-8"), place, path, places).encode() if path.suffix == ".md" else
        path.read_bytes() for place, path in files.items()
    }  # fmt: skip
    for place, write in WRITTEN.items():
        wanted[place] = MARKER.sub(lambda _: write(), wanted[place].decode()).encode()    # noqa: B023
    for path in PAGES.rglob("*"):
        if path.is_file() and path.relative_to(PAGES).as_posix() not in wanted:
            path.unlink()
    for place, content in wanted.items():
        path = PAGES / place
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def listed(nav: list[Any], level: int = 2) -> Iterator[str]:
    """Yield the lines of `llms.txt` for a part of the navigation."""
    for entry in nav:
        title, below = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(below, list):
            yield from ("", f"{'#' * level} {title}", "", *listed(below, level + 1))
            continue
        text = (PAGES / below).read_text("utf-8")
        heading = re.search(r"^# (.*)$", text, re.MULTILINE)
        assert heading is not None, f"{below} has no heading"
        paragraph = LINK.sub(r"\2", " ".join(text[heading.end() :].strip().partition("\n\n")[0].split()))
        sentences = re.split(r"(?<=[.])\s", paragraph)
        count = 2 if sentences[0].startswith("For ") else 1     # such a sentence names only the readers
        yield f"- [{title or heading[1]}]({below}): {' '.join(sentences[:count])}"


def complete() -> None:
    """Put the Markdown of the pages and `llms.txt` into the built site."""
    for path in PAGES.rglob("*.md"):
        shutil.copy(path, SITE / path.relative_to(PAGES))
    config = yaml.unsafe_load((ROOT / "mkdocs.yml").read_text("utf-8"))    # a tag names the function of the anchors
    skill = "Coding agents: `megaflow skill` prints the path of a skill file in the installed package."
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", "", skill, *listed(config["nav"])]
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Build the site once, or serve it until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Build the documentation site into build/site.")
    parser.add_argument("--serve", action="store_true", help="serve it on port 8000, and follow edits until Ctrl-C")
    serve = parser.parse_args().serve
    tool = Path(sys.executable).with_name("zensical")
    prepare()
    if not serve:
        shutil.rmtree(SITE, ignore_errors=True)
        code = subprocess.run([tool, "build", "--clean", "--strict"], cwd=ROOT, check=False).returncode
        if code == 0:
            complete()
        return code
    with subprocess.Popen([tool, "serve"], cwd=ROOT) as server:
        try:
            while server.poll() is None:
                time.sleep(POLL_SECONDS)
                prepare()
        except KeyboardInterrupt:
            server.wait()
    return server.returncode


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")       # without a terminal, its warnings are readable only so
    sys.exit(main())

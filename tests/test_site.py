"""The documentation site: its navigation and reference are complete, and it builds without a warning."""

import importlib
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner

from megaflow import errors
from megaflow.cli.main import Commands

ROOT = Path(__file__).parent.parent
DOCS, SITE = ROOT / "docs", ROOT / "build" / "site"
FRONT_DOORS = ("megaflow", "megaflow.connect", "megaflow.spark", "megaflow.testing", "megaflow.timely")
ELSEWHERE = {
    "megaflow.__version__", "megaflow.connect", "megaflow.spark", "megaflow.timely",    # no page of their own
    "megaflow.timely.Stream",                                                           # megaflow.Stream
}  # fmt: skip
FROM_THE_ROOT = {"readme.md", "changelog.md", "contributing.md", "agents.md", "security.md"}
FOREIGN = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
NO_LOAD = re.compile(r"""rel=["']?(?:canonical|alternate|next|prev)\b""")


def pages() -> set[str]:
    return {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_navigation_has_every_page_once() -> None:
    nav = re.findall(r"^ +- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(pages() | FROM_THE_ROOT)


@pytest.mark.parametrize("folder", [".", "reference", "tutorials"])
def test_an_index_lists_the_pages_of_its_folder(folder: str) -> None:
    index = DOCS / folder / "index.md"
    linked = set(re.findall(r"\]\(([\w-]+\.md)", index.read_text("utf-8")))
    assert {path.name for path in index.parent.glob("*.md")} <= linked | {"index.md"}


def test_the_reference_has_every_public_name_once() -> None:
    text = "\n".join(path.read_text("utf-8") for path in sorted((DOCS / "reference").glob("*.md")))
    named = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    public = {f"{door}.{name}" for door in FRONT_DOORS for name in importlib.import_module(door).__all__}
    assert sorted(named) == sorted((public - ELSEWHERE) | {"megaflow.errors"})


def test_each_class_of_errors_has_a_row_with_its_exit_code() -> None:
    text = (DOCS / "reference" / "messages.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| ([\d, ]+) \| .+ \|$", text, re.MULTILINE))
    public = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    assert rows.keys() == public
    for name, codes in rows.items():
        kind = getattr(errors, name)
        made = [kind(number) for number in (2, 15)] if name == "EndedBySignal" else [
            kind("refused", 0) if name == "RecordRefused" else kind([] if name == "Interrupted" else "what happened")
        ]    # fmt: skip
        assert codes == ", ".join(str(exit_code(error)) for error in made), name


def exit_code(error: BaseException) -> int:
    def fail() -> NoReturn:
        raise error

    group = Commands("megaflow")
    group.add_command(click.Command("fail", callback=fail))
    return CliRunner().invoke(group, ["fail"]).exit_code


def test_the_page_of_messages_finds_them_in_the_code() -> None:
    script: dict[str, Any] = runpy.run_path(str(DOCS / "error_messages.py"))
    found = script["collect"]()
    lines = list(script["markdown"](found))
    kinds = {kind for messages in found.values() for kind, _ in messages}
    assert script["CLASSES"].keys() - kinds == {"Interrupted", "EndedBySignal", "LimitReached", "KeepsFailing"}
    assert len(lines) > 900 and all(line.count("|") - line.count("\\|") == 3 for line in lines if line[0] == "|")
    whole = "\n".join(lines)
    assert "is incomplete: it ends at byte <size>, in the middle of its <name> data. Copy it again" in whole
    assert "| `Cannot read the store <path>: …` | [StoreError](errors.md#megaflow.errors.StoreError) |" in whole


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zensical") is None, reason="the site's tools are missing; `make docs` installs them")
def test_the_site_builds_strictly_and_loads_nothing_foreign() -> None:
    built = subprocess.run([sys.executable, DOCS / "build_site.py"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    listed = (SITE / "llms.txt").read_text("utf-8")
    for page in pages() | FROM_THE_ROOT:
        folder = SITE / page.removesuffix("index.md").removesuffix(".md")
        assert (folder / "index.html").exists() and (SITE / page).exists() and f"]({page}): " in listed, page
    foreign = [
        f"{path.relative_to(SITE)}: {tag}"
        for path in SITE.rglob("*.html")
        for tag in FOREIGN.findall(path.read_text("utf-8"))
        if not NO_LOAD.search(tag)
    ]
    foreign += [
        f"{path.relative_to(SITE)}: {found}"
        for path in SITE.rglob("*.css")
        for found in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", path.read_text("utf-8"))
    ]
    assert foreign == []
    assert "megaflow control move-bins" in (SITE / "reference/command-line/index.html").read_text("utf-8")
    formats = (SITE / "reference/file-formats.md").read_text("utf-8")
    assert "| `worker-ready` | `worker`, `paused` |" in formats, "the keys are those of control watch --json"
    assert "SourceError" in (SITE / "reference/messages/index.html").read_text("utf-8")
    assert "allowed_lateness" in (SITE / "reference/streams/index.html").read_text("utf-8")

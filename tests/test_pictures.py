"""The pictures of the documentation: they are what their script draws, they can be read, and what they say is true."""

import re
import runpy
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from megaflow import stable_hash

DOCS = Path(__file__).parent.parent / "docs"
FOLDER = DOCS / "pictures"
SCRIPT: dict[str, Any] = runpy.run_path(str(DOCS / "pictures.py"))
NAMES = sorted(path.name for path in FOLDER.iterdir())
SVG = "{http://www.w3.org/2000/svg}"
CONTRAST_MIN = 4.5      # WCAG 2, level AA


def words_of(name: str) -> list[str]:
    return [each.text or "" for each in ElementTree.parse(FOLDER / name).iter(f"{SVG}text")]


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_the_committed_pictures_are_what_the_script_draws() -> None:
    drawn = {f"{picture.name}.svg": picture.svg() for picture in SCRIPT["pictures"]()}
    there = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert drawn == there, "run python docs/pictures.py, and look at the pictures"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_describes_itself_and_is_on_a_page(name: str) -> None:
    root = ElementTree.parse(FOLDER / name).getroot()
    title, description = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")
    assert title and description and len(description) > len(title)
    assert root.get("aria-labelledby", "").split() == ["title", "desc"]
    pages = "\n".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    shown = re.findall(rf"!\[([^\]]*)\]\(pictures/{re.escape(name)}\)", pages)
    assert shown and all(len(words) > 60 for words in shown), "an image says in words what it shows"


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(scheme: int) -> None:
    colors = {name: pair[scheme] for name, pair in SCRIPT["COLORS"].items()}
    pairs = [*product(SCRIPT["INKS"], ["card"]), ("ink", "plain"), ("soft", "plain")]
    pairs += [(ink, f"{ink}-fill") for ink in SCRIPT["INKS"] if f"{ink}-fill" in colors]
    faint = [pair for pair in pairs if contrast(colors[pair[0]], colors[pair[1]]) < CONTRAST_MIN]
    assert len(pairs) > 10 and faint == []


def test_the_bin_of_the_picture_is_that_of_its_key() -> None:
    assert '"river"' in words_of("bins.svg")
    assert f"bin {stable_hash('river') >> (64 - 8)} of 256" in words_of("bins.svg")


def test_the_page_runs_the_timestamps_of_the_picture() -> None:
    stamps = words_of("lateness.svg")[5:25:4]
    page = (DOCS / "event-time.md").read_text("utf-8")
    assert f"{' '.join(stamps)} > a.jsonl" in page and words_of("lateness.svg").count("late") == 1

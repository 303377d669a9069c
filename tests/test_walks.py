"""Each function that docs/walks.md names exists, and each module that the glossary names."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "walks.md"
NAMES = sorted({*re.findall(r"`((?:\w+\.)+\w+)`", PAGE.read_text(encoding="utf-8"))} - {"megaflow."})
MESSAGES = (
    "megaflow.control.launcher_messages", "megaflow.control.messages", "megaflow.control.checkpoint_messages",
    "megaflow.control.reading_messages", "megaflow.control.watermark_messages", "megaflow.megaphone.base.routing",
    "megaflow.megaphone.base.chunks",
)  # fmt: skip


def test_the_page_names_many_functions() -> None:
    assert len(NAMES) > 80


@pytest.mark.parametrize("name", NAMES)
def test_a_named_function_exists(name: str) -> None:
    words = name.split(".")
    for count in range(len(words), 0, -1):
        path = "/".join(words[:count])
        if any((PAGE.parents[1] / "megaflow" / f"{path}{end}").exists() for end in (".py", "/__init__.py")):
            found = importlib.import_module(f"megaflow.{'.'.join(words[:count])}")
            for word in words[count:]:
                found = getattr(found, word)
            return
    raise AssertionError(f"no module of megaflow has {name}")


def test_each_named_message_exists() -> None:
    named = set(re.findall(r"(?:[aA]n?) `([A-Z]\w+)`", PAGE.read_text(encoding="utf-8")))
    known = {name for module in MESSAGES for name in vars(importlib.import_module(module))}
    assert len(named) > 10 and named <= known


def test_each_term_of_the_code_is_a_module_or_class() -> None:
    text = (PAGE.parent / "glossary.md").read_text(encoding="utf-8").partition("## Inside megaflow")[2]
    terms = re.findall(r"^\*\*([^*.]+)\.\*\*", text, re.MULTILINE)
    sources = [*(PAGE.parents[1] / "megaflow").rglob("*.py")]
    modules = {path.stem.removesuffix("s") for path in sources}
    classes = set(re.findall(r"^class (\w+)", "\n".join(path.read_text(encoding="utf-8") for path in sources), re.M))
    unknown = [term for term in terms if term.lower().replace(" ", "_").removesuffix("s") not in modules]
    assert len(terms) > 10
    assert [term for term in unknown if term.title().replace(" ", "") not in classes] == []

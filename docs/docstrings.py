"""Extension of griffe, which reads the docstrings for the reference: lists and doctests become Markdown.

Docstrings are written for `help()`: a list of arguments has a name, spaces and a text in each line, and a doctest needs
no fence. Markdown would join these lines to one paragraph.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

ENTRY = re.compile(r"(\S.*?) {2,}(\S.*)")


def as_markdown(text: str) -> str:
    r"""Return a docstring with bullets for its lists and fences around its doctests.

    >>> as_markdown("Sum up.\nkey     the key of a record,\n        or None\nother   a number")
    'Sum up.\n\n- `key`: the key of a record,\n    or None\n- `other`: a number'
    >>> as_markdown("Sum up.\n\n>>> 1 + 1\n2\n\nFast.")
    'Sum up.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nFast.'
    """
    return "\n".join(_lines(text.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    within = ""                                  # "list" or "doctest"
    for line in lines:
        if within == "doctest" and not line.strip():
            yield "```"
            within = ""
        elif not within and line.startswith(">>> "):
            yield "```pycon"
            within = "doctest"
        elif within != "doctest" and (entry := ENTRY.fullmatch(line)) and not line.startswith((" ", "- ", "|")):
            if within != "list":
                yield ""
            within = "list"
            yield f"- `{entry[1].replace('`', '')}`: {entry[2]}"
            continue
        elif within == "list" and line.startswith("  "):
            yield f"    {line.strip()}"
            continue
        elif within == "list":
            if line.strip():
                yield ""
            within = ""
        yield line
    if within == "doctest":
        yield "```"


class Docstrings(griffe.Extension):
    """Changes the docstring of each object that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Write it as Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

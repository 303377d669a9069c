"""Comparison of messages by the words that matter."""

import re

DELAYS = re.compile(
    r"^megaflow: (workers? [\d, ]+ (has|have) been |Job .* has not answered yet: |The coordinator of .* is busy: ).*\n",
    re.MULTILINE,
)


def without_delays(text: str) -> str:
    """Return messages without those that only a slow machine causes.

    >>> without_delays("megaflow: worker 0 has been silent for 12.3 s: it gets too little of a core\\nmoved 3 bins\\n")
    'moved 3 bins\\n'
    """
    return DELAYS.sub("", text)


def says(text: str, *parts: str) -> bool:
    """Return whether a text has all these parts, in this order."""
    return re.search(".*".join(map(re.escape, parts)), text, re.DOTALL) is not None

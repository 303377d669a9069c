"""Differences between two JSON documents, as merge patches (RFC 7386): the page's changes are such patches.

`known` and `rounded` make values that such a document may have.

A merge patch has the shape of the document. An object in it is merged key by key, null removes a key, and any other
value replaces the old one, lists also.

1. A patch is idempotent and contains absolute values. So a document may contain some of a patch's values already.
2. Objects of a document never contain null, because a patch could not set it. Lists may.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

TEXT_CHARACTERS: Final = 400  # of a text from the job

Document = dict[str, Any]


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    """Return the patch that turns one document into another. Equal parts that are the same object cost nothing.

    >>> difference({"a": 1, "b": {"x": 1, "y": 2}, "c": [1]}, {"a": 1, "b": {"x": 3}, "d": []})
    {'b': {'x': 3, 'y': None}, 'd': [], 'c': None}
    """
    if old is new:
        return {}
    patch: Document = {}
    for key, value in new.items():
        before = old.get(key)
        if before is value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := difference(before, value):
                patch[key] = inner
        elif before != value or key not in old:
            patch[key] = value
    patch.update((key, None) for key in old if key not in new)
    return patch


def merge(document: Mapping[str, Any], patch: Mapping[str, Any]) -> Document:
    """Return a document with a patch applied. Neither of the two changes.

    >>> merge({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"x": 3, "y": None}, "d": {"z": 1}})
    {'a': 1, 'b': {'x': 3}, 'd': {'z': 1}}
    """
    merged = dict(document)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def known(values: Mapping[str, Any]) -> Document:
    """Return the values that are known: neither None nor infinite; numbers rounded, texts cut."""
    found: Document = {}
    for name, value in values.items():
        if isinstance(value, float):
            if math.isfinite(value):
                found[name] = rounded(value)
        elif isinstance(value, str):
            found[name] = value[:TEXT_CHARACTERS]
        elif value is not None:
            found[name] = value
    return found


def rounded(value: float) -> float:
    """Return a number with three significant digits.

    >>> rounded(123456.0), rounded(0.012345), rounded(-2.0)
    (123000.0, 0.0123, -2.0)
    """
    return float(f"{value:.3g}")

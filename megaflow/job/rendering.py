"""How output records look where they are written, made by the worker that has them.

The launcher then handles plain lines: it need not know the types of the user's records, and
the work of writing is spread over the workers.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Form: TypeAlias = Literal["nothing", "records", "text", "jsonl"]
"""What a writer wants: nothing, the records themselves, or lines of text."""

Render: TypeAlias = Callable[[int, list[Any]], list[Any]]
"""(epoch, records) -> what is sent to the launcher, one item a record."""


def as_records(epoch: int, records: list[Any]) -> list[Any]:
    """The records as they are, for `megaflow.run`."""
    return records


def as_text(epoch: int, records: list[Any]) -> list[str]:
    """Strings as they are, other records by their repr.

    >>> as_text(7, ["a", ("a", 1)])
    ['a', "('a', 1)"]
    """
    return [record if type(record) is str else repr(record) for record in records]


def as_json_lines(epoch: int, records: list[Any]) -> list[str]:
    """One JSON object a record, with its epoch as the time.

    >>> as_json_lines(17, [("word", 3)])
    ['{"time": 17, "record": ["word", 3]}']
    """
    return [f'{{"time": {epoch}, "record": {to_json(record)}}}' for record in records]


def to_json(record: Any) -> str:
    """Return the record as JSON; what JSON has no form for appears as its repr.

    >>> to_json(("é", 3, {1})), to_json({(1, 2): 3})
    ('["é", 3, "{1}"]', '"{(1, 2): 3}"')
    """
    try:
        return json.dumps(record, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):  # keys of a dict that are no strings; a value that contains itself
        return json.dumps(repr(record), ensure_ascii=False)


RENDERERS: dict[Form, Render] = {"records": as_records, "text": as_text, "jsonl": as_json_lines}

"""Undoing what tests register with the codec, which knows the classes of a whole process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megaflow.timely.communication.codec import lowering, user_types
from megaflow.timely.communication.codec.encode import of_main


@contextmanager
def undone() -> Iterator[None]:
    """Undo afterwards what the codec is told of classes and their folders meanwhile, and changes of `sys.path`."""
    tables: list[dict[Any, Any]] = [
        lowering._LOWER, lowering._COLUMN, user_types.decoders, user_types._folders, user_types._names, of_main,
    ]  # fmt: skip
    before, path = [dict(table) for table in tables], list(sys.path)
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
        sys.path[:] = path

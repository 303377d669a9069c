"""A store with records that wait for a sink, for tests of the parts that show and change them."""

from pathlib import Path
from typing import Any

from megaflow.durable.blocks import BlockKind, CutHeader, pack
from megaflow.durable.commits import SinkToken
from megaflow.durable.segments import SegmentWriter, segment_name
from megaflow.timely.communication.codec.encode import encode
from tests.durable.kept_histories import KeptHistory

LONG = [f"row {number}" for number in range(1200)]  # of several blocks
RECORDS: dict[str, list[Any]] = {"a" * 32: [("x", 1), {"name": "y"}, None], "b" * 32: LONG, "c" * 32: [7]}


def keep_outbox(path: Path) -> None:
    """Make a store whose newest checkpoint has the records of three tokens, and a token of another sink."""
    history = KeptHistory(path)
    history.checkpoint({"river": 1})
    tokens = [SinkToken("files", 2, encode("file 1"))]
    for place, (token, records) in enumerate(RECORDS.items()):
        writer = SegmentWriter(CutHeader(2, 20, 1, 0))
        for start in range(0, len(records), 512):
            part = records[start : start + 512]
            writer.add(pack(BlockKind.OUTBOX, "to table", None, part, [None] * len(part)))
        segment, parts = writer.finish(segment_name(1, 9, place + 1))
        history._store.put(segment.name, parts)
        tokens.append(SinkToken("to table", 2, encode(token), 0, (segment,)))
    history.checkpoint({"sea": 2}, tokens=tuple(tokens))
    history.close()

"""Commits: small files that name all durable data of a checkpoint, such as `000000000042.commit`.

A commit names everything that a job needs to resume from one checkpoint: segments, positions of inputs, lengths of
outputs. The highest commit counts, and so do the earlier commits that it names: those of the last few checkpoints, and
those of checkpoints with a name. The launcher writes a commit whole or not at all (`store`). When it takes over the
store, it repeats the newest commit under the next number, with the next incarnation (`incarnation`). So the number of a
commit is not that of its checkpoint: files are numbered without a gap, but checkpoints may be given up.

1. The bytes contain the name of each field; STORED_AS has the fields with another name there. Each value has exactly
   the declared type, at every level; otherwise the file is damaged. A field in LATER is written only if it differs from
   the value there, and a missing one has that value. Only a file of an earlier format may lack any other field, which
   then has its default. A field that is not known comes from a newer megaflow, as the checksum shows that the file is
   not damaged.
2. A segment is needed as long as one bin of one operator was not written whole after it: see `needed`.
"""

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from hashlib import blake2b
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from megaflow.durable.segments import SEGMENT_NAME, SegmentRef, check_format, damaged
from megaflow.errors import MegaflowError, StoreError, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.order import grouped

COMMIT_FORMAT: Final = 3
ANEW: Final = -1
"""Value of `SourcePartition.ended_in`: it does not exist any longer, and its source may use its name for another."""
COMMIT_NAME: Final = re.compile(r"(\d{12})\.commit")

LATER: Final[dict[str, dict[str, tuple[()] | str | float | None]]] = {
    "Commit": {"untaken": (), "named": (), "code": None, "record": None, "partitions": (), "finished": (), "clock": 0,
               "sources": (), "members": (), "bound": None, "columns": None, "lineage": "", "parents": (),
               "earlier": (), "delivered": (), "delivered_tokens": (), "delivered_before": (), "furthest": None,
               "begun_at": 0.0},
    "OperatorCut": {"form": "", "partial": None},
    "OutputLength": {"fingerprint": ""},
    "SplitRemainder": {"input": "", "skip": 0, "maxima": (), "stamp": (), "forgotten": False, "is_open": False,
                       "natural": False, "is_left_out": False},
    "UntakenLines": {"query": ""},
    "SourcePartition": {"maxima": (), "ended_in": 0},
    "SinkToken": {"worker": 0, "segments": ()},
}
"""Class -> field that the first stores of this format lack -> the value that a missing field has."""
STORED_AS: Final = {"Commit": {"partitions": "portions"}}
"""Fields of records that have another name in stores."""
CHECKPOINT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

_MAGIC: Final = b"mf-comm\n"
_START: Final = struct.Struct("<8sIII")  # magic, format, length of the rest, checksum
_NUMBER: Final = struct.Struct("<I")

LastDelivery: TypeAlias = tuple[str, int, tuple[str, ...]]
"""A sink, the last checkpoint of which it delivered records, names of the tokens of that, of all workers."""

BATCH: Final = "batch"
"""Ends the name of the query of a batch DataFrame, in place of an id: Spark keeps no record of it."""
DIGEST: Final = "#"
"""Begins a name that is no token."""
_TEXT_BYTES_MAX: Final = 66  # encoded: 64 bytes after their length
_TEXT_TAGS: Final = frozenset([*range(0xA0, 0xC0), 0xD9])  # first byte of a short text in MessagePack


@dataclass(frozen=True, slots=True)
class OperatorCut:
    """A stateful operator in a commit."""

    name: str
    kind: str  # of the operator, as in `restored`
    bases: tuple[int | None, ...]  # bin -> checkpoint in which it was last written whole; None: never
    version: int = 1  # of its states, in all segments
    form: str = ""  # of its states, as the text of their `Form`; "": not known
    partial: int | None = None  # microseconds: windows that begin up to then lack records; None: see `state_migration`


@dataclass(frozen=True, slots=True)
class SplitRemainder:
    """The part of a split that is still to be read."""

    number: int
    path: str
    start: int  # bytes
    end: int  # bytes, exclusive
    fingerprint: str  # of the file, up to `start`
    input: str = ""  # the input of its lines; "": the job's only one, which has no name
    skip: int = 0  # bytes of text, of a compressed file
    maxima: tuple[tuple[str, int], ...] = ()  # (operator, the greatest timestamp that it has seen in earlier lines)
    stamp: tuple[int, ...] = ()  # of the file: device, inode, time; empty: not known
    forgotten: bool = False  # the file is gone, and the user has given up its rest
    is_open: bool = False  # the file ended in a record that began at `start`; it may be gone then
    natural: bool = False  # digits in names counted as numbers in the order of its input
    is_left_out: bool = False  # a fault has ended the file, so what it gains is not read


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """The unread part of a partition of a source (`megaflow.connect.source_protocol`): all from its position on.

    If the partition has ended, only a later run may read on: `ended_in` then names the run that has read it to its
    position. Partition and position are encoded, because processes that pass them on or keep them lack the program's
    types.
    """

    number: int  # unique in the job, also among splits
    input: str  # the name of the source
    partition: bytes
    position: bytes | None = None  # None: the beginning
    maxima: tuple[tuple[str, int], ...] = ()  # (operator, the greatest timestamp that it has seen in earlier records)
    ended_in: int = 0  # the first incarnation of that run, or ANEW; 0: it has not ended, or never continues


@dataclass(frozen=True, slots=True)
class UntakenLines:
    """Spark's lines that were delivered to a worker before the checkpoint's epoch, and not taken in by its source."""

    segment: SegmentRef  # contains only these lines
    lines: int
    query: str = ""  # that delivered them; "": the only query of the commit


@dataclass(frozen=True, slots=True)
class OutputLength:
    """The durable length of an output."""

    output: str  # its kind and place, as in `Writer.name`
    length: int  # bytes
    fingerprint: str = ""  # of its last bytes before that length; "": not known


@dataclass(frozen=True, slots=True)
class SinkToken:
    """Records that a sink has prepared and must commit; it commits them again after a crash."""

    sink: str
    checkpoint: int  # in which it was prepared: the commit's, or an earlier one that was given up
    token: bytes  # encoded
    worker: int = 0  # the worker that prepared it
    segments: tuple[SegmentRef, ...] = ()  # of an outbox: they contain its records


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Program and files that a process runs."""

    app: str  # FILE:FUNCTION, without the folder
    args: tuple[str, ...]
    files: dict[str, str]  # loaded file, relative to the app's folder -> digest of its bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Content of a commit file."""

    number: int  # of the file
    checkpoint: int  # 0: none yet
    time: int  # its epoch: contains the effects of all earlier records, and nothing of this epoch or later
    incarnation: int  # from 1 on
    kept: tuple[int, ...] = ()  # numbers of earlier commits that are kept, newest first
    app: str = ""  # the program that the store belongs to
    written_at: float = 0.0  # wall-clock seconds
    begun_at: float = 0.0  # wall-clock seconds, when its checkpoint began; 0: not known
    next_worker: int = 0  # the lowest id that no worker has had
    operators: tuple[OperatorCut, ...] = ()
    segments: tuple[SegmentRef, ...] = ()  # that are needed, by checkpoint
    splits: tuple[SplitRemainder, ...] = ()
    spark: tuple[tuple[str, int], ...] = ()  # query, its last included batch: taken in, or among the untaken lines
    outputs: tuple[OutputLength, ...] = ()
    tokens: tuple[SinkToken, ...] = ()
    table: tuple[int, ...] = ()  # bin -> worker
    plan: bytes | None = None  # the plan that was under way, encoded by its maker
    watermark: int | None = None  # of event time, in microseconds; None: there was none
    ended: bool = False  # the inputs have ended, and nothing follows
    code: Fingerprint | None = None  # of the program; None: not known, as in the first stores
    dropped: tuple[str, ...] = ()  # names of operators whose states were given up or renamed, sorted
    untaken: tuple[UntakenLines, ...] = ()  # of each worker and query in order
    named: tuple[tuple[str, int], ...] = ()  # (name of a checkpoint, number of its commit, possibly this one), sorted
    partitions: tuple[SourcePartition, ...] = ()  # with unread records, by number
    finished: tuple[SourcePartition, ...] = ()  # without unread records, by number; with ends if they may continue
    clock: int = 0  # microseconds that the job had run, in all incarnations, as the operators last heard it
    sources: tuple[str, ...] = ()  # that the program reads, sorted, including those that have found no partition
    members: tuple[int, ...] = ()  # the workers of the job, including those without bins; empty: not known
    bound: int | None = None  # of event time in microseconds, the greatest of all partitions; None: nothing was seen
    columns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] | None = None
    """(Input, (column, type) of its values), sorted. CSV's columns are sorted, see `csv_types`, and those of rows in
    order, see `kept_columns`. None: not known, and CSV's values were str. An input of rows may lack."""
    record: SegmentRef | None = None  # has Spark's record as of `spark`, if the checkpoint was given a name
    furthest: int | None = None  # microseconds, the greatest timestamp of all records; None: there was none, or unknown
    lineage: str = ""  # of the store, see `lineage`; "": an earlier version began it
    parents: tuple[str, ...] = ()  # if it is a fork: lineages of the store that it was forked from, of its parent, …
    earlier: tuple[str, ...] = ()  # lineages that it had before, the newest first
    delivered: tuple[tuple[str, int], ...] = ()
    """(Sink, last checkpoint of which it had delivered records; 0: none), sorted."""
    delivered_tokens: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Sink, names of its tokens of that checkpoint), sorted; without those of which they are not known."""
    delivered_before: tuple[tuple[str, str, int, tuple[str, ...]], ...] = ()
    """(Sink, an earlier lineage, its last checkpoint with a delivery, names of its tokens), sorted: see `lineage`."""

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """All segments that it names."""
        alone = () if self.record is None else (self.record,)
        outbox = (segment for token in self.tokens for segment in token.segments)
        return *self.segments, *(each.segment for each in self.untaken), *alone, *outbox

    @property
    def own_files(self) -> tuple[str, ...]:
        """Names of the segments to give up if this commit fails; the next commit needs those of outboxes."""
        outbox = {segment for token in self.tokens for segment in token.segments}
        return tuple(each.name for each in self.files if each.checkpoint == self.checkpoint and each not in outbox)

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the earlier commits that count beside this one, newest first."""
        return tuple(sorted({*self.kept, *(number for _, number in self.named)} - {self.number}, reverse=True))

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        rest = encode(_plain(self))
        return _START.pack(_MAGIC, COMMIT_FORMAT, len(rest), _checksum(COMMIT_FORMAT, rest)) + rest

    def _check(self) -> None:
        assert self.number > 0 and self.incarnation > 0
        assert list(self.kept) == sorted(set(self.kept), reverse=True) and self.number > max(self.kept, default=0)
        assert list(self.named) == sorted(dict(self.named).items())
        assert all(0 < number <= self.number for _, number in self.named)
        assert all(each.checkpoint <= self.checkpoint for each in self.segments)
        assert list(self.segments) == sorted(self.segments, key=lambda each: each.checkpoint)
        assert len({each.name for each in self.files}) == len(self.files)
        assert all(each.segment.checkpoint == self.checkpoint for each in self.untaken)
        assert all(each.checkpoint <= self.checkpoint for each in self.tokens)
        bases = (base for operator in self.operators for base in operator.bases)
        assert all(base is None or base <= self.checkpoint for base in bases)


def _checksum(version: int, rest: bytes) -> int:
    """Return the crc32 of length, rest and, from format 3 on, the format: one flipped bit turns 3 into 2."""
    seed = zlib.crc32(_NUMBER.pack(version)) if version > 2 else 0
    return zlib.crc32(rest, zlib.crc32(_NUMBER.pack(len(rest)), seed))


def commit_name(number: int) -> str:
    """Return a commit file's name.

    >>> commit_name(42)
    '000000000042.commit'
    """
    return f"{number:012}.commit"


def check_checkpoint_name(name: str) -> None:
    """Raise UsageError unless a checkpoint can have this name, which is neither a number nor a path."""
    if not CHECKPOINT_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a checkpoint: give a letter, then up to 63 letters, digits, dots, "
            "dashes and underscores"
        )


def commit_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the commits among files, lowest first."""
    return sorted(int(found[1]) for found in map(COMMIT_NAME.fullmatch, names) if found)


def commit_from_bytes(name: str, content: bytes) -> Commit:
    """Return the commit in a file.

    Raises StoreDamaged with the place if the content has changed, StoreError if a newer megaflow wrote it.
    """
    if len(content) < _START.size:
        raise damaged(name, len(content), "it ends too early")
    magic, version, length, crc = _START.unpack_from(content)
    if magic != _MAGIC:
        raise damaged(name, 0, "it does not begin as a commit does")
    check_format(name, version, COMMIT_FORMAT)
    rest = content[_START.size :]
    if len(rest) != length or _checksum(version, rest) != crc:
        raise damaged(name, _START.size, f"{len(rest)} bytes do not have the length or checksum given before them")
    try:
        commit = _built(Commit, decode(rest), version < COMMIT_FORMAT)
    except _LaterField as error:
        raise StoreError(
            f"{name} has {error}, which this megaflow does not know: a newer one wrote it. Use that one, or put back "
            "the copy of the store from before the upgrade."
        ) from error
    except (MegaflowError, TypeError) as error:
        raise damaged(name, _START.size, str(error)) from error
    assert isinstance(commit, Commit)
    if name != commit_name(commit.number):
        raise damaged(name, _START.size, f"it is commit {commit.number}")
    for segment in commit.files:
        if not SEGMENT_NAME.fullmatch(segment.name):
            raise damaged(name, _START.size, f"{segment.name!r} is not the name of a segment")
    return commit


def query_of(input: str, id: str) -> str:
    """Return the name of the query that feeds an input of rows, or lines if `input` is "". `id` may be BATCH.

    >>> query_of("orders", "0123abcd"), query_of("", "0123abcd")
    ('orders-0123abcd', '0123abcd')
    """
    return f"{input}-{id}" if input else id


def input_of(query: str) -> str:
    """Return the input that a query feeds, by the query's name; "" if it feeds lines.

    >>> input_of("orders-0123abcd"), input_of("0123abcd")
    ('orders', '')
    """
    return query.rpartition("-")[0]


def is_of_a_batch(query: str) -> bool:
    """Tell whether a query reads a batch DataFrame, by the query's name."""
    return query.endswith(f"-{BATCH}")


def token_name(token: bytes) -> str:
    """Return a short name of an encoded token: a short text is its own name.

    Other values are not decoded, because this process may lack their classes.

    >>> token_name(encode("rows 7")), token_name(encode(("rows", 7)))
    ('rows 7', '#51245204daf0b21d')
    """
    if token[0] in _TEXT_TAGS and len(token) <= _TEXT_BYTES_MAX and not (text := str(decode(token))).startswith(DIGEST):
        return text
    return f"{DIGEST}{blake2b(token, digest_size=8).hexdigest()}"


def deliveries_of(number: int, tokens: Iterable[SinkToken]) -> dict[str, LastDelivery]:
    """Return what each sink delivers with the tokens of a checkpoint, by sink."""
    named = grouped((token.sink, token_name(token.token)) for token in tokens)
    return {sink: (sink, number, tuple(sorted(names))) for sink, names in named.items()}


def needed(operators: Iterable[OperatorCut], segments: Iterable[SegmentRef]) -> tuple[SegmentRef, ...]:
    """Return the segments that are still needed, by checkpoint: those since the oldest base of any bin.

    >>> old, new = (SegmentRef(f"i1-w0-00000{n}.seg", n, 0, 100, 0, 5) for n in (1, 2))
    >>> [each.checkpoint for each in needed([OperatorCut("count", "", (2, 2))], [new, old])]
    [2]
    >>> [each.checkpoint for each in needed([OperatorCut("count", "", (2, None))], [new, old])]
    [1, 2]
    """
    oldest = min((base or 0 for operator in operators for base in operator.bases), default=0)
    return tuple(sorted((each for each in segments if each.checkpoint >= oldest), key=lambda each: each.checkpoint))


def _plain(value: Any) -> Any:
    """Return a record as a dict of plain values."""
    if is_dataclass(value):
        later, stored = LATER.get(type(value).__name__, {}), STORED_AS.get(type(value).__name__, {})
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        written = {name: each for name, each in plain.items() if name not in later or each != later[name]}
        return {stored.get(name, name): each for name, each in written.items()}
    if isinstance(value, tuple) and value and is_dataclass(value[0]):  # a table of thousands of ints is already plain
        return tuple(map(_plain, value))
    return value


class _LaterField(Exception):
    """A record has a field that its class lacks; the text names it."""


_hints: Final = cache(get_type_hints)  # of a record


@cache
def _required(record: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(record) if field.default is MISSING)


def _built(hint: Any, value: Any, older: bool) -> Any:
    """Return the value of type `hint` that a plain value represents. Raises TypeError if there is none.

    `older`: fields with a default may be missing. Raises _LaterField if a field is not known.
    """
    origin, kinds = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        if type(value) is dict:
            names = {stored: name for name, stored in STORED_AS.get(hint.__name__, {}).items()}  # type: ignore[union-attr]
            value = LATER.get(hint.__name__, {}) | {names.get(name, name): each for name, each in value.items()}  # type: ignore[union-attr]
        hints = _hints(hint)  # type: ignore[arg-type]
        required = _required(hint) if older else hints.keys()  # type: ignore[arg-type]
        if type(value) is dict and required <= value.keys():
            if later := sorted(map(str, value.keys() - hints.keys())):
                raise _LaterField(f"the field {later[0]!r:.80}")
            return hint(**{name: _built(hints[name], each, older) for name, each in value.items()})  # type: ignore[operator]
    elif origin is UnionType:
        return None if value is None and NoneType in kinds else _built(kinds[0], value, older)
    elif origin is tuple:
        if type(value) is tuple and kinds[-1] is ...:
            return tuple(_built(kinds[0], each, older) for each in value)
        if type(value) is tuple and len(value) == len(kinds):
            return tuple(_built(kind, each, older) for kind, each in zip(kinds, value, strict=True))
    elif origin is dict:
        if type(value) is dict:
            return {_built(kinds[0], key, older): _built(kinds[1], each, older) for key, each in value.items()}
    elif type(value) is hint:
        return value
    raise TypeError(f"{value!r:.80} was found in place of {getattr(hint, '__name__', hint)}")

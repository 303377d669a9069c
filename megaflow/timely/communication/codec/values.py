"""Values to bytes and back, equal in value and in type.

A value is first *lowered* to a tree that msgpack carries exactly: None, bool, int, float, str and bytes stand for
themselves, everything else is a node, a list that begins with a tag. The tree is packed in one call. Decoding unpacks
the tree and *restores* each node by its tag.

Rules:
1. Types are told apart by `type(value)`, never by isinstance: a subclass never turns into its base.
2. A list of str, int or float alone travels as one run of bytes, a list of tuples of one length as one such list per
   position (a column): no Python code runs per record.
3. The decoder imports nothing and calls nothing that the bytes name: a class is looked up in `sys.modules`, must be a
   dataclass, NamedTuple or enum, and is filled without running its `__init__`.
4. Whatever the bytes are, decoding returns a value or raises ProtocolError. msgpack allocates a list as soon as it has
   read its length, so no array in the tree is longer than `tags.ARRAY_LENGTH_MAX`; a longer list is cut into parts.
5. Objects that are shared within a value arrive as copies.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgpack

from megaflow.errors import CannotTravel, ProtocolError, UsageError
from megaflow.timely.communication.codec import decode as decoding
from megaflow.timely.communication.codec import encode as encoding
from megaflow.timely.communication.codec import tags, user_types

T = TypeVar("T")


def encode(value: object) -> bytes:
    """Return bytes from which `decode` rebuilds the value; raises CannotTravel naming a type that cannot travel.

    >>> decode(encode((3, [("to", 1), ("be", 2)])))
    (3, [('to', 1), ('be', 2)])
    """
    try:
        tree = encoding.lower(value)
    except RecursionError as error:
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is nested too deeply to travel") from error
    try:
        packed: bytes = msgpack.packb(
            tree, default=encoding.lower_big_int, strict_types=True, unicode_errors="surrogatepass"
        )
    except ValueError as error:  # more than 4 GiB in one piece
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is too large to travel") from error
    return packed


def decode(buffer: bytes | bytearray | memoryview) -> Any:
    """Return the value that `encode` made these bytes from; raises ProtocolError for any other bytes."""
    try:
        tree = msgpack.unpackb(
            buffer,
            unicode_errors="surrogatepass",
            max_array_len=tags.ARRAY_LENGTH_MAX,
            max_map_len=0,
            max_ext_len=0,
            object_hook=_refuse,
            ext_hook=_refuse,
        )
        return decoding.restore(tree)
    except ProtocolError:
        raise
    except Exception as error:  # whatever a wrong tree made fail, the bytes are to blame
        raise ProtocolError(f"{len(buffer)} received bytes do not hold a value ({error!r})") from error


def register(cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
    """Let values of exactly this class travel: `encode` gives a value that can travel, `decode` turns it back.

    Both sides must register the class under the same name before the first value is sent.
    """
    if cls in encoding.BUILT_IN:
        raise UsageError(f"register({cls.__name__}): values of {user_types.describe(cls)} travel already")
    name = f"{cls.__module__}.{cls.__qualname__}"
    decoding.decoders[name] = decode
    encoding.LOWER[cls] = lambda value, depth: [tags.REGISTERED, name, encoding.lower(encode(value), depth + 1)]


def _refuse(content: object, *more: object) -> None:
    raise ProtocolError("a received value holds a msgpack map or extension")

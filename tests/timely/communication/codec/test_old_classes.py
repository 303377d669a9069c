"""Values of classes that have since changed: fields and members match by name, and a record stands for a lost class."""

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.old_classes import OldRecord

HEAD = "from dataclasses import dataclass\nfrom enum import Enum, Flag\nfrom typing import NamedTuple\n"
TUPLE = "class Sale(NamedTuple):\n    cents: int\n    count: int\n"
SWAPPED = "class Sale(NamedTuple):\n    count: int\n    cents: int\n"
OTHER_TUPLE = "class Sale(NamedTuple):\n    cents: int\n    price: int\n"
FIELDS = "@dataclass\nclass Sale:\n    cents: int\n    count: int\n"
FEWER = "@dataclass\nclass Sale:\n    cents: int\n"
SLOTS = "class Sale:\n    __slots__ = 'cents', 'count'\n    def __init__(self, *a):\n        self.cents, self.count = a"
FLAGS = "class Sale(Flag):\n    READ = 1\n    WRITE = 2\n"
RENUMBERED = "class Sale(Flag):\n    RUN = 1\n    WRITE = 4\n    READ = 8\n"

Define = Callable[[str], Any]


@pytest.fixture
def define() -> Iterator[Define]:
    """Define the class of the program's module `till` anew."""
    module = types.ModuleType("till")
    module.__file__ = "/srv/till.py"
    sys.modules["till"] = module

    def renew(source: str) -> Any:
        vars(module).pop("Sale", None)
        exec(compile(HEAD + source, "/srv/till.py", "exec"), vars(module))
        return vars(module).get("Sale")

    yield renew
    del sys.modules["till"]


@pytest.mark.parametrize("count", [1, 5])  # alone, and as columns
@pytest.mark.parametrize("shared", [False, True])
def test_named_tuple_fields_travel_by_name(define: Define, count: int, shared: bool) -> None:
    kind = define(TUPLE)
    encoded = encode([kind(600 + n, 3) for n in range(count)], shared=shared)
    kind = define(SWAPPED)
    assert decode(encoded, shared=shared) == [kind(cents=600 + n, count=3) for n in range(count)]


def test_several_flags_travel_by_their_names(define: Define) -> None:
    kind = define(FLAGS)
    encoded = encode(kind.READ | kind.WRITE)
    kind = define(RENUMBERED)
    assert decode(encoded) == kind.READ | kind.WRITE
    kind = define("class Sale(Flag):\n    READ = 1\n")
    with pytest.raises(ProtocolError, match="has no member 'WRITE'"):
        decode(encoded)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    "before, after",
    [
        (TUPLE, OTHER_TUPLE),
        (TUPLE, FIELDS),
        (TUPLE, ""),
        (FIELDS, FEWER),
        (FEWER, FIELDS),
        (FIELDS, TUPLE),
        (FIELDS, ""),
        (SLOTS, ""),
    ],
)
def test_a_changed_class_is_refused_or_becomes_a_record(define: Define, before: str, after: str, count: int) -> None:
    kind = define(before)
    given = [kind(*(600 + n, 3)[: 1 if before == FEWER else 2]) for n in range(count)]
    encoded = encode({"all": given, 1: 2})
    fields = [{"cents": each.cents} | ({"count": 3} if before != FEWER else {}) for each in given]
    define(after)
    with pytest.raises(ProtocolError, match=r"till\.Sale"):
        decode(encoded)
    records = decode(encoded, old=True)["all"]
    assert [vars(each) for each in records] == fields
    assert all(isinstance(each, OldRecord) and type(each).__name__ == "Sale" for each in records)


@pytest.mark.parametrize("count", [1, 5])
def test_an_attribute_beside_the_fields_is_kept(define: Define, count: int) -> None:
    kind = define(FIELDS)
    sales = [kind(600 + n, 3) for n in range(count)]
    for each in sales:
        each.note = "gift"
    assert [vars(each) for each in decode(encode(sales))] == [vars(each) for each in sales]
    encoded = encode(sales)
    define(FEWER)
    with pytest.raises(ProtocolError, match=r"it has cents, count, note; the class has cents$"):
        decode(encoded)


def test_a_member_that_is_gone_is_refused_or_a_record(define: Define) -> None:
    kind = define("class Sale(Enum):\n    CASH = 1\n    CARD = 2\n")
    encoded = encode({kind.CASH: 5, kind.CARD: 7})
    define("class Sale(Enum):\n    MONEY = 1\n    CARD = 7\n")
    with pytest.raises(ProtocolError, match="has no member 'CASH'"):
        decode(encoded)
    (cash, card), counts = zip(*decode(encoded, old=True).items())
    assert (cash.name, card.name, card.value, counts) == ("CASH", "CARD", 7, (5, 7))


def test_an_object_of_a_class_that_is_there_stays_one(define: Define) -> None:
    kind = define(FIELDS)
    assert decode(encode([kind(1, 2)] * 5), old=True) == [kind(1, 2)] * 5

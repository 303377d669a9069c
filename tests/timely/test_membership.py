"""Membership as a value."""

import dataclasses

import pytest

from megaflow.errors import UsageError
from megaflow.timely.membership import Membership, founding


def test_ids_are_sorted_and_may_have_gaps() -> None:
    assert Membership(4, frozenset({9, 2, 5}), coordinator=5).ids == (2, 5, 9)


def test_the_lowest_founder_coordinates_version_0() -> None:
    assert founding([7, 3, 3]) == Membership(0, frozenset({3, 7}), 3)


def test_equality_and_hash_are_those_of_version_workers_and_coordinator() -> None:
    assert founding([1, 2]) == founding([2, 1])
    assert hash(founding([1, 2])) == hash(founding([2, 1]))
    assert founding([1, 2]) != dataclasses.replace(founding([1, 2]), version=1)
    assert dataclasses.replace(founding([1, 2]), workers=frozenset({1, 8})).ids == (1, 8)


def test_a_membership_without_workers_or_with_a_strange_coordinator_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one worker"):
        founding([])
    with pytest.raises(UsageError, match=r"coordinator 4 must be one of the workers \[1, 2\]"):
        Membership(0, frozenset({1, 2}), coordinator=4)

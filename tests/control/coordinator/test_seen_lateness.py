"""Lateness as a status shows it, by operator and partition."""

from megaflow.control.coordinator.reading.seen_lateness import SeenLateness
from megaflow.control.coordinator.reading.unread_partitions import Unread
from megaflow.control.messages import Split
from megaflow.control.watermark_messages import PartitionLateness

A, B = ("split", 0), ("split", 1)
UNREAD_B = Unread(B, "clicks", 0, Split(1, "b.json", 0, 9, "clicks"))


def test_reports_of_a_partition_add_up_at_each_operator_apart() -> None:
    seen = SeenLateness()
    seen.add("one", [(B, ((3, 2), (8, 1)), 8)])
    seen.add("one", [(B, ((3, 1),), 3)])
    seen.add("two", [(B, ((5, 1),), 5)])
    assert seen.statuses([UNREAD_B]) == (
        PartitionLateness("one", "clicks", "b.json", 4, 3e-06, 8e-06, 8e-06),
        PartitionLateness("two", "clicks", "b.json", 1, 5e-06, 5e-06, 5e-06),
    )


def test_partitions_that_are_read_to_their_ends_are_one() -> None:
    seen = SeenLateness()
    for number in range(1_000):
        seen.add("one", [(("partition", -number), ((3, 1),), 3)])
        seen.add("one", [(B, ((7, 1),), 7)])
        seen.keep({B})
    assert len(seen.state()) == 2, "their number is bounded"
    seen.add("one", [(A, ((9, 1),), 9)])
    right = (
        PartitionLateness("one", "clicks", "b.json", 1_000, 7e-06, 7e-06, 7e-06),
        PartitionLateness("one", "", None, 1_001, 3e-06, 3e-06, 9e-06),
    )
    assert seen.statuses([UNREAD_B]) == right
    assert seen.statuses([UNREAD_B]) == right, "a status changes nothing"


def test_whoever_takes_the_part_over_goes_on_counting() -> None:
    seen, other = SeenLateness(), SeenLateness()
    seen.add("one", [(A, ((3, 1),), 3), (B, ((7, 1),), 7)])
    seen.keep({B})
    other.resume(seen.state())
    for each in (seen, other):
        each.add("one", [(B, ((7, 1),), 7)])
    assert other.statuses([UNREAD_B]) == seen.statuses([UNREAD_B])

"""Messages are compared by their parts, in order."""

from tests.words import says

LOST = "worker 7 was lost:\nits machine (host a) does not answer"


def test_parts_are_found_in_order() -> None:
    assert says(LOST, "worker 7", "(host a)", "not answer")
    assert not says(LOST, "not answer", "worker 7")


def test_missing_or_overlapping_part_is_not_found() -> None:
    assert not says(LOST, "worker 8")
    assert not says(LOST, "worker 7", "7 was")

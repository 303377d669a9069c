"""The store under launchers, crashes, power losses, and failing or full disks, in random orders."""

import pytest

from tests.simulation import folders, stores


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_is_recovered_and_what_counts_is_whole(seed: int) -> None:
    stores.run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_three_hundred_more_orders(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        try:
            stores.run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(3))
def test_the_same_holds_in_a_folder_of_this_machine(seed: int) -> None:
    folders.run(seed)

"""At the start of an attempt, each worker that is still there keeps its bins. The others share the rest."""

from collections import Counter
from random import Random

import pytest

from megaflow.job.launcher.store.first_owners import OwnersBefore, first_owners, gone_text, of_checkpoint, table_of

SAME = {0: 0, 1: 1}


def test_a_drained_worker_stays_drained() -> None:
    assert first_owners(OwnersBefore((0,) * 4, SAME), 2) == ((0, 1, 2, 3), ())
    assert first_owners(OwnersBefore((0, 0, 2, 2), SAME), 2) == ((0, 1, 2, 3), ()), "it takes nothing of others"


def test_all_share_if_no_owner_is_there() -> None:
    assert first_owners(OwnersBefore((2, 2, 2, 2), SAME), 2) == ((0, 2), (1, 3))


def test_a_move_stays_made() -> None:
    assert first_owners(OwnersBefore((1, 0, 1, 1), SAME), 2) == ((1,), (0, 2, 3))


def test_workers_of_a_checkpoint_have_the_places_in_order() -> None:
    owners = of_checkpoint((3, 3, 7, 9), (9, 3, 7), 2)
    assert owners.places == {3: 0, 7: 1} and first_owners(owners, 2) == ((0, 1), (2, 3))
    assert gone_text(owners) == "; worker 9 is gone: its 1 bin goes to the others"


def test_new_workers_take_an_equal_share_and_drained_ones_none() -> None:
    owners = of_checkpoint((0,) * 12, (0, 1), 4)
    assert [len(bins) for bins in first_owners(owners, 4, may_be_new=True)] == [4, 0, 4, 4]


def test_workers_that_join_before_a_loss_take_nothing_of_others() -> None:
    assert first_owners(OwnersBefore((0, 0, 1, 1), SAME), 3, [None] * 3) == ((0, 1), (2, 3), ())


def test_a_process_that_stays_says_what_it_had_last() -> None:
    drained = OwnersBefore((0, 0, 1, 1), SAME)  # as of the checkpoint; all bins have moved to worker 0 since
    assert first_owners(drained, 2, [None, ()]) == ((0, 1, 2, 3), ()), "who has them was lost"
    assert first_owners(drained, 2, [(0, 1, 2, 3), None]) == ((0, 1, 2, 3), ())


def test_what_is_not_known_is_dealt_round() -> None:
    assert first_owners(of_checkpoint((0, 0), (), 2), 2, may_be_new=True) == ()
    assert first_owners(OwnersBefore((), {}), 2, [None, None]) == ()
    assert first_owners(OwnersBefore((), {}), 2, [None, (3,)]) == ((), (3,)), "but for what is in memory"


@pytest.mark.parametrize("seed", range(200))
def test_each_bin_has_one_owner_and_keeps_it_if_it_can(seed: int) -> None:
    random = Random(seed)
    members = sorted(random.sample(range(9), random.randint(1, 5)))
    table = tuple(random.choice(members) for _ in range(random.choice([4, 32])))
    count = random.randint(1, 6)
    owners = of_checkpoint(table, members, count)
    owned = first_owners(owners, count, may_be_new=True)
    found = table_of(owned)
    assert len(found) == len(table) and len(owned) == count
    if count <= len(members):
        kept = [(bin, owners.places[worker]) for bin, worker in enumerate(table) if worker in owners.places]
        assert all(found[bin] == place for bin, place in kept)
    else:
        new, sizes = range(len(members), count), Counter(found)
        active = len({*table}) + len(new)
        assert all(sizes[place] == len(table) // active for place in new)
        gained = [bin for bin, worker in enumerate(table) if found[bin] not in (owners.places[worker], *new)]
        assert not gained, "nothing moves but to new ones"

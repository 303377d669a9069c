"""A real job and hostile visitors, strangers and clients: the same visitors each time."""

import random
from collections.abc import Iterator

import pytest

from tests.attack.hostile import VISITS, Besieged

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """One job for all tests; at the end it must end normally."""
    besieged = Besieged(tmp_path_factory.mktemp("hostile"))
    try:
        yield besieged
        besieged.end()
    finally:
        besieged.target.run.process.finish()


@pytest.mark.parametrize("name", VISITS)
def test_a_job_bears_several_visitors_of_a_kind(job: Besieged, name: str) -> None:
    job.siege(random.Random(name), 4, [name])


def test_a_job_bears_visitors_of_all_kinds_at_once(job: Besieged) -> None:
    job.siege(random.Random(1), 12)

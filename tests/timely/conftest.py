"""Quick garbage collections, for modules whose tests need many of them."""

import gc

import pytest


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """Exclude what earlier modules have left from garbage collections, or each would take up to a second."""
    gc.collect()
    gc.freeze()

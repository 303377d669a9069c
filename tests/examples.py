"""The number of examples of property tests: `make test` tries a fifth, the other runs of the fast suite try all.

The other runs are those on the newest Python and with the newest and oldest dependencies (`make test-newest`).
"""

from hypothesis import settings

ALL = "patient"  # profile that has the other runs take all examples: --hypothesis-profile=patient
FIFTH = "quick"
EXAMPLES = 100  # of a test that says nothing else


def many(examples: int) -> int:
    """Return how many of these examples a test is to try."""
    return max(1, examples * settings().max_examples // EXAMPLES)

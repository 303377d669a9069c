"""Counts of what the attacks have done so far."""

from collections import Counter

COUNTS: Counter[str] = Counter()

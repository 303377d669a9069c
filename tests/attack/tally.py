"""How much the attacks have done so far: of each thing, how often."""

from collections import Counter

COUNTS: Counter[str] = Counter()

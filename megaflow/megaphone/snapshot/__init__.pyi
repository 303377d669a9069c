"""The types of the names that this package loads on first use."""

from megaflow.megaphone.snapshot.journal import Journal as Journal
from megaflow.megaphone.snapshot.retained_bins import RetainedBins as RetainedBins

"""Progress tracking: counts of what is outstanding, and what they imply. No bytes, no I/O."""

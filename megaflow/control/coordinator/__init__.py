"""Runs in the coordinating worker: what is decided, timed and numbered."""

"""Runs in each worker process: from lines to the fold to the launcher."""

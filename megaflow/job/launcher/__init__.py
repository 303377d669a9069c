"""Runs in the launcher: worker processes, their lines, their outputs, their ends."""

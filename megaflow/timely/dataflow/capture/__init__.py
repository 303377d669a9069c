"""Capture and replay of streams."""

"""Operators, the streams between them, and the capabilities they hold."""

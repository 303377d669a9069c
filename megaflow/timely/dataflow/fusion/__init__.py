"""Stateless operators in a row, run as one generated function."""

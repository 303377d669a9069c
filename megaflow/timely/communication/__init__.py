"""Bytes and channels between workers: this floor moves messages and knows no time."""

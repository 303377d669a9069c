"""Membership changes: processes that join and leave a running cluster."""

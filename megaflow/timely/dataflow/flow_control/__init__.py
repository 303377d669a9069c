"""Bounded queues between operators and workers: gates, credit, handoffs."""

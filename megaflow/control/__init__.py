"""Steering a running job: plans, the controller that decides and times commands, and what asks it."""

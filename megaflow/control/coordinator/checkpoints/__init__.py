"""Checkpoints as the coordinator sees them.

checkpoint_under_way  the reports on the present checkpoint so far
checkpoints           when a checkpoint begins, which workers it waits for, and how it ends
"""

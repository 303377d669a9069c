"""Bins that move.

trials            requests that move bins: the owners first check that the bins can travel
plans             the plan in progress with its runner
reconfigurations  the routing table after the last command, and the moves that have not taken effect
"""

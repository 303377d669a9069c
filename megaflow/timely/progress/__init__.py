"""Progress tracking: counts of what is outstanding, and what they imply. No bytes, no I/O.

antichain, change_batch    frontiers, and signed changes of counts
reachability      what a tracker promises, and which of the two a dataflow gets
integer_tracker   for root times: each frontier is one number
product_tracker   for nested times, and the oracle of the other
propagation_order    where each location stands, and which cycles are refused
reference         slow and obvious, to compare both with
"""

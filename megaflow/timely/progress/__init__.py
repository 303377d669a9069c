"""Progress tracking: counts of outstanding records and capabilities, and the frontiers that follow. No bytes, no I/O.

antichain, change_batch    frontiers, and signed changes of counts
reachability      the tracker's interface, and the choice between the two trackers
integer_tracker   for root times: each frontier is one number
product_tracker   for nested times; also the oracle for the integer tracker
propagation_order    the order in which locations are processed, and the cycles that are refused

`megaflow.testing.reference` computes frontiers slowly and obviously, to compare both trackers with.
"""

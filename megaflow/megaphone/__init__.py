"""Megaphone: state in bins, and the operators F and S that move bins between workers while records flow.

base/      bins, routing tables, times and timers
snapshot/  the changes of an operator since its last checkpoint, and how they are written
router/    F: sends records to the owners of their bins, and takes out the bins that move
folds/     S: all kinds of folds per key
"""

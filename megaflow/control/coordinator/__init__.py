"""Steering in the coordinating worker: it decides, times and numbers every command of a job.

base/         events and instructions, the members, the control stream's clock
reading/      splits, partitions and Spark's batches: who reads what; event time
moves/        bins that move, and the plans behind them
checkpoints/  when a checkpoint begins, and how it ends
members/      processes that join and leave
controller/   the decisions as one state machine, and the shell around it
"""

"""S: all kinds of folds per key.

stateful_core       what all kinds share, and the kind without a state
stateful            a fold that takes one record at a time; in a durable job it notes which keys change
stateful_timed      a fold that takes all records of a key and time together, and sets timers
partial_results     the results of one worker by time and key, combined before F
combining           how counts, sums, folds and the best values of a key are combined
ranking             the order by which minima, maxima and the best few are chosen
aggregates          S for all of these, which merges partial results
load_meter          records and busy time by bin, and the most frequent keys
"""

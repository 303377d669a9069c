"""The library of operators: free functions from ports to ports.

linear       map, flat_map, filter, inspect …: a batch in, at most one out
stamped      the same for records with a timestamp beside them
branching    partition, branch, ok_err
movement     exchange, broadcast, concatenate, feedback, enter, leave
buffering    buffer: a bound and a policy of the program's own
delays       delay, delay_batch, reclock
aggregation  count, accumulate, aggregate, state_machine
sources      to_stream, and inputs at any times in any order
generic      operators whose logic the user writes
"""

"""The library of operators: free functions from ports to ports.

linear       map, flat_map, filter, branch …, whose code `fusion` writes
stamped      timestamps beside the records, given and removed
branching    partition, ok_err
movement     exchange, broadcast, concatenate, feedback, enter, leave
buffering    buffer: a queue with the program's own bound and policy
delays       delay, delay_batch, reclock
aggregation  count, accumulate, aggregate, state_machine
sources      to_stream, and inputs at any times in any order
generic      operators whose logic the user writes
"""

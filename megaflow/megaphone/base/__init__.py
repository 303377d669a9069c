"""Bins, routing tables, times and timers.

bins             hashes of keys, the bins that keys fall into, and the store of the bins that a worker owns
time_hashes      hashes of times, including those of numpy and pandas
routing          the owner of each bin at each time, and the commands that change it
flat_times       how F and S see the times of nested scopes, and why moves are exact there
flat_ends        the inputs and outputs of F and S
by_time          a dict that knows its least time
durability       whether operators are durable, and what a durable one hands over
barrier_actions  work that is due between two times: answers to lookups, and cuts
bin_trial        the check, before a move, that everything in a bin can travel
chunks           a bin cut into pieces of bounded size
timers           timers by bin: the time at which each is due, and its key
timer_line       timers that wait for one number to rise
event_timers     timers for timestamps and for the clock, and how watermarks reach them
event_unit       units of event time: microseconds inside, the program's own unit outside
stream_unit      the unit of one stream's timestamps, and how it travels
event_inputs     the operators that take timestamps, and the inputs of a job that they follow
"""

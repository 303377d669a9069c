"""Megaphone: state in bins, and the operators F and S that move them between workers while records flow.

bins            hashes of keys, the bins that they fall into, and the store of those that a worker owns
routing         which worker owns which bin at which time; the commands that change it
control_stream  the numbered commands that stateful operators listen to, from where they are validated
command_log     the same commands where F reads them
bootstrap       what a worker that has joined needs to route as all others do
introduction    how a worker that joins an engine program is told that, without a Bootstrap
router          F: sends records to the owners of their bins, and takes out the bins that move
splitting       the loops of F
flat_times, flat_ends
                how both see the times of nested scopes, and why moves are exact there; their inputs and outputs
chunks          a bin cut into pieces of bounded size
bin_transfer    the pieces under way, and the credit that bounds them
bin_trial       whether all that is in a bin can travel, before it is to
moments         what is to be done between two times: answers to who asks for a state, cuts
journal         what has changed in an operator since the last checkpoint, and when to cut
bases           which bins a checkpoint has whole, so that a store stays small
unwritten       what is still to be written of a cut
remains         what is in memory of an operator when its job has lost a process, and what of that may be kept
stateful_core   S: what all kinds of it share, and the kind without a state
stateful, stateful_timed
                the other kinds: record by record; all records of a key and time, with timers
stateful_durable
                the first of these, in a durable job
stateful_lasting
                the same, where a key that has had no record for a while loses its state
partial_results what a worker has of a time by key, combined before F
aggregates      S of counts, sums and folds by key, which merges those
timers          what is due at which time for which key, by bin
timer_line      timers that wait for one number to rise
event_timers    those for timestamps and by the clock, and how watermarks come to them
event_clock     event_time: gives records their timestamps, and knows the greatest by partition
record_bounds   how far event time was in a record's own partition, by which it is late or not
lateness        how much later than a later record of their partition records come, counted
event_unit      times of events: microseconds inside, outside what the program counts in
by_time         a dict that knows its least time
load_meter      records and busy time by bin, and the most frequent keys
"""

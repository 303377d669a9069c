"""Runs in the coordinating worker: what is decided, timed and numbered.

controller          the decisions, a state machine of values; events: what it is told, and what it answers
driver              its hands: sockets, clock, and the handle of the control stream
roster              who takes part, and what each worker may be given
lines_to_read, split_pool    splits and pushed lines that are not read, and who holds them; who is given which next
partitions          those of sources: which there are, which are still to be read, and who reads them
joins               processes on their way in, and who is waited for no longer
membership_requests, request_progress    processes to add and to remove, tables to give; how far each has come
reconfigurations, plans    bins that move; whose plan is being carried out
spark_commits, staged_checks    batches that sources have not taken in, or that are not known to be staged
checkpoints         when one begins, whom it waits for, and what comes of it
checkpoint_under_way    what has come of the present one by now
watermarks          how far event time is, and the job's clock; unread_partitions: what is to be read, as it sees that
idle_time           where the watermark is while all partitions are idle
seen_lateness       how much later than a later record of their partition records came
event_time_end      the last watermark, and whether everything closes at the end
last_lines          whether all that was read is worked off
questions           questions that all members answer; job_status: what a status shows by that
lookups             keys of which clients ask the state, which their owners show
trials              requests that move bins, which are tried first
epoch_clock         what is put on the control stream, and when its time advances
job_state           what one controller leaves to the next
"""

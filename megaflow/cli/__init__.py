"""The command line: the only package that prints.

main                `megaflow run`, `megaflow graph`, and the groups `megaflow control` and `megaflow state`
inspecting          the commands of `megaflow control` that ask a job
steering, scaling   the commands of `megaflow control` that change a job
state               the commands of `megaflow state` that look at a store
state_reading       the commands that read states out of it; app_operators: the bins of a program's keys
state_outbox        the command for records that wait for a sink
drawing             the pictures of `megaflow graph`
help, options       what the commands share
run_options         the options of `megaflow run`; run_flags: which of them go together
text, json_records  how results are printed; event_time_text, counted_text: their parts about time and counts
"""

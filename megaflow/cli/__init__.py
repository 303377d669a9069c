"""The command line: the only package that prints.

main                `megaflow run`, `megaflow graph`, and the groups `megaflow control` and `megaflow state`
inspecting          the commands of `megaflow control` that ask a job
steering, scaling   the commands of `megaflow control` that change a job
state               the commands of `megaflow state` that look at a store
state_reading       those that take something out of it; app_operators: what a program says of its operators
state_outbox        the one that shows and changes what waits for a sink
drawing             the pictures of `megaflow graph`
help, options       what the commands share
run_options         the options of `megaflow run`; run_flags: which of them go together
text, json_records  what they print; event_time_text: of event time; counted_text: of what was left out
"""

"""The command line: the only package that prints.

main                `megaflow run`, `megaflow graph`, and the groups `megaflow control` and `megaflow state`
project             `megaflow new`, from the folders of templates/, and `megaflow skill`
doctor, demo        `megaflow doctor`, `megaflow demo`
inspecting          the commands of `megaflow control` that ask a job
steering, scaling   the commands of `megaflow control` that change a job
page                `megaflow control web`
state               the commands of `megaflow state` that look at a store
state_reading       the commands that read states out of it
state_outbox        the command for records that wait for a sink
built_program       a program that is built, not run: for `megaflow graph` and `check`, and for the bins of its keys
check               `megaflow check`
findings, captured  its warnings: about the dataflow, and about the functions of operators
built_text          how it prints a dataflow and its warnings
help, options       what the commands share
run_options         the options of `megaflow run`, and which of them go together
text, event_text, json_records  how results are printed
top_model, top_app  the screen of `megaflow top`
"""

"""Steering a running job. Each package below runs where its name says.

messages             messages between the parts of a job
launcher_messages    messages to and from the launcher
checkpoint_messages  messages about checkpoints, between all parts that take part in one
reading_messages     messages between coordinator and sources about splits and partitions
staging_messages     messages about lines that tasks of Spark stage
watermark_messages   messages about event time: the progress of partitions, and the need for the job's clock
results_messages     messages between the launcher and the readers of its results
shapes               the check that a received record matches its class
latency              rates and latencies, as values that merge
reports              statuses and accounts of commands
job_events           what happens in a job, for those who watch it
wording              workers, bins and numbers of things, for messages
coordinator/         in the coordinating worker: decisions, their times and their numbers
client/              in each process that steers a job: questions, plans, policies
"""

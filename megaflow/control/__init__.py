"""Steering a running job. Each package below runs where its name says.

messages            all that the parts of a job say to each other; launcher_messages: to and from the launcher
checkpoint_messages what is said of a checkpoint, by all who take part in it
reading_messages    what coordinator and sources say of splits and partitions
staging_messages    what is said of lines that tasks of Spark stage
watermark_messages  what is said of event time: how far partitions are, and whether the job's clock is asked for
packed_rows         rows of Spark on their way from an executor to a worker; row_values: their columns' values
result_rows         records of the output as rows, on their way to Spark; ddl: their columns
results_messages    what the launcher and the readers of its results say to each other
latency             rates and lateness, as values that merge
shapes              whether a record that has come is what its class says
reports             statuses and accounts of commands
wording             workers, bins and numbers of things, for messages
coordinator/        in the coordinating worker: what is decided, timed and numbered
worker/             in every worker: what it reports, and what its port answers
client/             wherever a job is steered from: questions, plans, policies
"""

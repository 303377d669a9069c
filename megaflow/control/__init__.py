"""Steering a running job. Each package below runs where its name says.

messages            all that the parts of a job say to each other; launcher_messages: to and from the launcher
checkpoint_messages what is said of a checkpoint, by all who take part in it
packed_rows         rows of Spark on their way from an executor to a worker; row_values: their columns' values
shapes              whether a record that has come is what its class says
reports             statuses and accounts of commands
wording             workers, bins and numbers of things, for messages
coordinator/        in the coordinating worker: what is decided, timed and numbered
worker/             in every worker: what it reports, and what its port answers
client/             wherever a job is steered from: questions, plans, policies
"""

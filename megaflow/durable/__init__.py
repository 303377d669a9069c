"""Durable state: the files that a job writes so that a crash loses nothing, and the ways to read them again.

Modules of values come first, modules of files last. This package lies under `megaphone`, whose operators make blocks,
and under the job, whose launcher commits: both need its terms. From the engine it needs only the codec. It knows
operators, workers and times only as names and numbers.

blocks        content of a cut: the changed keys, whole bins and timers of an operator, as columns
restored      the states and timers of an operator, rebuilt from the blocks of a checkpoint
state_migration  the states that each operator of a program inherits, with their names and versions
recovery      the initial states of a job's operators, read from the segments that a commit names, and the check that a
              program can read them
key_kinds     whether a changed program still gives an operator keys of the same kind
segments      the files that hold a cut's blocks
commits       the small files that name all that is durable and that a job needs to resume
store         five operations on files of a folder that exist whole or not at all
local_folder  a folder on this machine, and its lock
incarnation   a launcher's time with a store: the commits that it writes, and the files that it removes
inspection    the content of a store, and its damage
reading       the states of an operator, bin by bin, for processes that are not workers of the job
query_record  Spark's record of a query's batches, as of one of them
outbox        the records that wait for a sink, and how a user drops or rewrites one
relocation    files whose paths have changed since a commit recorded them
lineage       whether a store and the places of its sinks stand at the same checkpoint
copying       a copy of a store, of all valid commits or of one checkpoint
"""

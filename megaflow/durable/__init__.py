"""Durable state: what a job writes so that a crash loses nothing, and how it is read again. Values below, files above.

This floor lies under `megaphone`, whose operators make blocks, and under the job, whose launcher commits: both need its
words, and it needs of the engine only the codec. It knows no operator, worker or time but as names and numbers.

blocks        what a cut writes: the changed keys, whole bins and timers of an operator, as columns
restored      the states and timers of an operator, rebuilt from the blocks of a checkpoint
inheritance   which of them each operator of a program goes on with, under which name and in which version
recovery      what a job's operators begin with, read from the segments that a commit names
readable      whether a program can read them
key_kinds     whether the keys of a program that has changed are still of their kind
segments      the files that hold a cut's blocks
commits       the small files that say what is durable, and all that a job needs to go on from there
store         five operations on files that are there whole or not at all, and how a folder carries them out
local_folder  a folder of this machine, and its lock
incarnation   a launcher's time with a store: the commits that it writes, and what it removes
inspection    what is in a store, and whether it is as it was written
reading       the states of an operator, bin by bin, for whoever is no worker of the job
query_record  Spark's record of what the batches of a query have, as of one of them
outbox        the records that wait for a sink, and how one is dropped or rewritten by hand
copying       a copy of a store, of all that counts or of one checkpoint
"""

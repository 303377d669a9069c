"""Durable state: what a job writes so that a crash loses nothing, and how it is read again. Values below, files above.

This floor lies under `megaphone`, whose operators make blocks, and under the job, whose launcher commits: both need its
words, and it needs of the engine only the codec. It knows no operator, worker or time but as names and numbers.

blocks      what a cut writes: the changed keys, whole bins and timers of an operator, as columns
restored    the states and timers of an operator, rebuilt from the blocks of a checkpoint
"""

"""The launcher: starts worker processes, feeds them lines, and collects their outputs.

run/        a job from its start to its end: attempts, the loop, joiners, the summary
processes/  the worker processes, on this machine or on Spark's executors
inputs/     files, lines and items of the program, up to the workers
outputs/    the workers' outputs in epoch order, and everything that `--output` names
store/      the store of a durable job: where it resumes, and which files it has read
program/    the program's function, modules and variables on their way to the workers
"""

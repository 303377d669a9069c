"""The inputs of a job on one worker.

source_operator  the source of lines, which stamps batches with epochs
line_queue       what the worker may read now
reading_turns    which input is read next
reading_pace     how far a source may read ahead
open_splits      the files of each input
open_partitions    the partitions of sources, and the events that wake them
pushed_lines     lines from the launcher, and the parsers of lines that have no file
staging          lines that tasks of Spark stage until a commit names them
staged_units     staged lines as text, or packed rows
untaken_lines    Spark's lines that a checkpoint finds not yet processed
event_reports    the progress of event time by partition, and idle partitions
exact_maxima     the greatest timestamps up to each position
"""

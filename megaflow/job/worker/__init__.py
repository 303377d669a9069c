"""Runs in each worker process: from lines to the fold to the launcher.

child               the process; join_by_hand: one that joins by `megaflow run --join`; departure: Ctrl-C there
lifeline            its end, when the launcher ends; watchdog: which of its workers are busy
memory              what it remembers of its states in the job's next life, if it stays when others are lost
worker_program      its dataflow, and the loop that steps it
rehearsal           whether the program can go on with its states; dry_build: its dataflow, without running it
flow                the user's function, and what it is given; source_record: which source it was loaded from
fingerprint         whether all processes run the same code
source_operator, line_queue, staging    lines: stamped with epochs, queued, staged for Spark
pushed_lines        what the launcher pushes; line_streams: the parsers of lines that have no file
event_reports       how far event time is, by partition, and which partitions are idle
exact_maxima        the greatest timestamps beside positions, as of the records before these
reading_pace        how far a source may read ahead
staged_attempt      what one attempt of a task has sent
staged_units        what is staged: lines in a text, or packed rows; named_inputs: whose these are, and as what
open_portions, file_watch    partitions of sources, and what wakes them; discovery: which there are
untaken_lines       those of Spark's that a checkpoint finds there
kept_state          durable state: what operators begin with, and where their cuts go
cut_packer, cut_keeper    the blocks of cuts as segments; the thread that writes them
worker_sinks        what the program writes to by itself; open_sink, open_outbox: one of them
output              output records on their way to the launcher; json_lines, csv_rows: as JSON, as CSV
"""

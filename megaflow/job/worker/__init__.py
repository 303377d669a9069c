"""A worker process: from the lines through the dataflow to the launcher.

child               the process; join_by_hand: a process started by `megaflow run --join`; departure: its Ctrl-C
lifeline            ends the process when the launcher ends; watchdog: detects busy workers
memory              states kept in memory across a restart, when the process survives the loss of others
worker_program      its dataflow, and the loop that steps it
rehearsal           checks whether the program can resume with its states; dry_build: builds it without running it
flow                the user's function and its argument; source_record: the source from which it was loaded
fingerprint         checks that all processes run the same code
source_operator, line_queue, staging    lines: stamped with epochs, queued, staged for Spark
pushed_lines        lines from the launcher; line_streams: parsers of lines that have no file
event_reports       the progress of event time by partition, and idle partitions
exact_maxima        the greatest timestamps up to each position
reading_pace        how far a source may read ahead
staged_attempt      the lines that one attempt of a task has sent
staged_units        staged lines as text, or packed rows; named_inputs: the inputs by name and type
open_portions, file_watch    partitions of sources, and the events that wake them; discovery: finds partitions
untaken_lines       Spark's lines that a checkpoint finds not yet processed
kept_state          durable state: the states with which operators start, and their cuts
cut_packer, cut_keeper    the blocks of cuts as segments; the thread that writes them
worker_sinks        the sinks to which the program writes; open_sink, open_outbox: a single sink
output              output records on their way to the launcher; json_lines, csv_rows: as JSON, as CSV
"""

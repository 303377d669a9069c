"""The job that `megaflow run` starts: a launcher and its worker processes.

spec                what the launcher sends to a process; app: the function to run; splits: files as byte ranges
split_reader        reads a split; followed_files: reads growing files, for `--follow`
file_position       the position in a growing file; rotated_copy: the rest of a file that was compressed and removed
record_format       parses the bytes of a file into records; text_lines: the lines in them
json_format         JSON lines
csv_format          CSV; csv_head: the header of a file; csv_parser: the rows after it
text_encoding       decodes bytes to text; file_formats, text_form: recognize formats by their first bytes
compression         the text of compressed files; stream_reader: reads such a file, or one in UTF-16, as a split
job_file, contact   find a running job; side_door: asks its launcher
reachable           the addresses under which others reach this machine
process_agent       runs beside a process on Spark's executors; agent_messages: its messages
exit_report, sign_of_life    why a worker process ended; whether it is alive
program_code        compares the code of two processes, and files with the code that was loaded
kept_states         the states that a job has saved, for tests and notebooks
launcher/           the launcher
worker/             the worker processes
profile/            `--profile`: the measurements of each worker, and the report
"""

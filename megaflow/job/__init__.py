"""What `megaflow run` is: a launcher and its worker processes.

spec                what the launcher tells a process; app: which function runs; splits: files cut into byte ranges
split_reader        reads a split; followed_files: reads files that grow, for `--follow`
file_position       how far such a file is read; rotated_copy: its rest, when it was compressed and removed
record_format       how the bytes of a file become records, for both; text_lines: the lines in them
json_format         JSON lines
csv_format          CSV; csv_head: the header of a file; csv_parser: the rows behind it
text_encoding       how bytes become text; file_formats, text_form: what the first bytes of a file say of that
compression         the text of compressed files; stream_reader: such a file, or one in UTF-16, as a split
job_file, contact   how a running job is found; side_door: how its launcher is asked
reachable           under which addresses others find this machine
process_agent       beside a process that runs on Spark's executors; agent_messages: between it and the launcher
exit_report, sign_of_life    why a worker process ends; whether it is well
program_code        whether two processes run the same code, and whether its files are what was loaded
kept_states         what a job has kept, for tests and notebooks
launcher/           runs in the launcher
worker/             runs in each worker process
profile/            `--profile`: what a worker measures of itself, and the report of all
"""

"""The inputs of a job in the launcher.

launcher_input  all inputs of a job: files for the workers, and what the launcher reads itself
own_folders     folders that the job writes, which must not be its input
line_options    the user's options for a file of lines
file_lines      lines of a pipe
pulled_source   iterables and queues of the program
loop_sources    sources of asyncio
frame_rows      tables of pandas and Arrow as items
line_reader     the thread that reads the launcher's own lines
line_pusher     sends them to the coordinator's process, within a window
"""

"""What is read, by whom, and how far event time has come.

split_pool         unread splits, and which reader gets which next
partitions         partitions of sources: the known ones, the unread ones, and their readers
lines_to_read      unread splits and pushed lines, and their holders
spark_commits      Spark batches that sources have not taken in yet
staged_checks      the check that a batch is staged before it is committed
unread_partitions  the partitions that may hold event time back
watermarks         the progress of event time, and the job's clock
input_fronts       how far ahead of other inputs files may be read, with --max-skew
idle_branches      partitions whose records reach some operators only
idle_time          the watermark while all partitions are idle
seen_lateness      how late records were within their partitions
event_time_end     the last watermark, and whether everything closes at the end
"""

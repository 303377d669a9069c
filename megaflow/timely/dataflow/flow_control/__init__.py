"""Backpressure: bounded queues between operators and workers (here), and every other bound that a record meets.

A job has nine mechanisms that hold data back. Each bounds one place. None holds time: epochs, commands, progress and
mail pass full places, so a part that waits for another worker's epoch always gets it.

     mechanism      bounds                                  limit                           lives in
  1  gates          records in one input queue              16 batches of records           gates, input_queue, handoffs
  2  credit         records sent to one worker over one     64 batches of records           credit, handoffs
                    channel and not given back
  3  peer bytes     bytes of the DATA lane that wait for    8 MiB, the fullest peer         job.worker.source_operator
                    the socket to one process                                               (`pending_bytes`)
  4  launcher room  bytes of output that wait for the       8 MiB                           `LauncherDoor.has_room` of
                    launcher's socket                                                       `connection_handlers`
  5  probe lag      epochs between control and the end      20 epochs, then one batch an    job.worker.source_operator
                    of the dataflow                         epoch                           (`LAG_LIMIT_EPOCHS`)
  6  run-ahead      records in a stateful operator of this  16 batches of records, while    job.worker.source_operator
                    worker that wait for their time         the output lags                 (`WAITING_RECORDS_MAX`)
  7  epoch size     batches that a source reads an epoch    256 batches of lines (1.5 MB)   job.worker.source_operator
  8  commits ahead  committed Spark batches that sources    2 batches, then Spark's commit  control.coordinator
                    have not taken in                       is answered late                .spark_commits
  9  read ahead     lines in flight that one source read    a second of its worker's work   job.worker.reading_pace

Three more windows bound other streams: text that the launcher reads itself (2 MiB not yet taken in:
`job.launcher.inputs.line_pusher`), bins that move (1 MiB not installed: `megaphone.base.chunks`), and staged lines of
Spark in memory (64 MiB, the rest in a file: `job.worker.reading.staging`). Epochs last at least 10 ms
(`control.coordinator.base.epoch_clock`), so 5 and 7 also bound a time and a rate.

Owners
  - The engine owns 1 and 2, so every dataflow has them. An operator asks `Output.is_full()`, which is true while any
    gate or credit further down is used up. Replay, stateless operators, `to_stream` and the job's source ask.
  - A `stream.buffer` replaces 1 by the program's own bound and policy: sources wait, as elsewhere, or the buffer grows,
    drops, merges or fails (`operators.buffering`). A full place behind it stops nothing before it.
  - One operator, the source of lines (`LineSource._allowed`), asks 3 to 7 and 9, in this order: 1 to 4, 5 with 6, 9, 7.
    The first one that refuses decides. A tick of control or room downstream runs the source again.
  - 4 also holds from the start until the launcher has connected. It also stops the output operator, which keeps the
    records that do not fit under a capability. So the output's frontier stands, and 5 stops the sources of all workers,
    not only of the worker whose connection is full.
  - 8 stops Spark's driver, before lines reach a worker.

Which mechanism acts
  - A slow operator on the same worker: 1. Its queue closes, and sources before it get "full", even through operators
    that never refuse records (stateful operators, joins).
  - A slow operator on another worker: 2. Its queue closes (1 there) and it gives no credit back. Senders stop when the
    window of that one worker is used up, because the next record might be for it.
  - A slow network, or a suspended process: 2 first, for the records of each channel. If records are large, 3: credit
    counts records, and the window may be more bytes than a process should keep.
  - A slow reader of the output: 4, then 5.
  - A worker that is slow as a whole, so that epochs do not close: 5 everywhere. On the fast workers also 6: what they
    read lies in the stash of stateful operators, which accept every record and so never close a gate.
  - A source that is faster than everything else: 1 within a worker; 7 if the dataflow accepts everything and epochs
    close late.
  - Spark ahead of the job: 8, and the file of `staging` for lines that are staged and not committed.

Overlaps
  - 2 and 3 both bound the data sent to one process. 2 counts records for each channel and each worker, 3 bytes of all
    channels to a process. 3 alone would miss records that have arrived and wait in a queue there. 2 alone would miss
    ten thousand records of a megabyte.
  - 1 and 6 both bound the records that wait in a worker. 1 ends when an operator takes records. 6 counts those that a
    stateful operator took and may not apply yet. 6 holds only while 5 does: without lag the stash empties each epoch.
  - 4 and 5: 4 at once stops the worker whose connection is full. 5 stops all workers, some epochs later.
  - 5 and 7 both bound the records in the dataflow at a time: at most 20 epochs of 256 batches. 5 alone would admit any
    amount in one long epoch, 7 alone any number of epochs.
  - 8 and 5: a committed batch waits in the source's queue, outside the dataflow, so 5 does not see it.

`handoffs` proves that no operator waits forever on 1 and 2. 3 to 7 end by themselves: sockets are emptied whatever the
source does, and time advances, which closes epochs.
"""

"""Backpressure: bounded queues between operators and workers (here), and every other bound that a record meets.

A job has nine mechanisms that hold data back. Each bounds one place. None holds time: epochs, commands, progress and
mail pass whatever is full, so what waits for another worker's epoch always gets it.

     mechanism      bounds                                  limit                           lives in
  1  gates          records in one input queue              16 batches of records           gates, input_queue, handoffs
  2  credit         records sent to one worker over one     64 batches of records           credit, handoffs
                    channel and not given back
  3  peer bytes     bytes of the DATA lane that wait for    8 MiB, the fullest peer         job.worker.source_operator
                    the socket to one process                                               (`pending_bytes`)
  4  launcher room  bytes of output that wait for the       8 MiB                           control.worker.port_roles
                    launcher's socket                                                       (`LauncherDoor.has_room`)
  5  probe lag      epochs between control and the end      20 epochs, then one batch an    job.worker.source_operator
                    of the dataflow                         epoch                           (`LAG_LIMIT_EPOCHS`)
  6  run-ahead      records in a stateful operator of this  16 batches of records, while    job.worker.source_operator
                    worker that wait for their time         the output lags                 (`_is_ahead`)
  7  epoch size     batches that a source reads an epoch    256 batches of lines (1.5 MB)   job.worker.source_operator
  8  commits ahead  committed Spark batches that sources    2 batches, then Spark's commit  control.coordinator
                    have not taken in                       is answered late                .spark_commits
  9  read ahead     lines in flight that one source read    a second of its worker's work   job.worker.reading_pace

Beside them stand three windows of other streams: text that the launcher reads itself (2 MiB not taken in:
`job.launcher.line_pusher`), bins that move (1 MiB not installed: `megaphone.chunks`), staged lines of Spark in memory
(64 MiB, the rest in a file: `job.worker.staging`). Epochs last 10 ms at least (`control.coordinator.epoch_clock`), so
5 and 7 bound a time and a rate, too.

Who holds what
  - 1 and 2 are the engine's; any dataflow has them. An operator asks `Output.is_full()`, which is true while any gate
    or credit further down is used up; replay, stateless operators, `to_stream` and the job's source ask.
  - Where a program has put a `stream.buffer`, the bound of 1 is the program's own, and so is what happens at it:
    sources wait, as elsewhere, or it grows, drops, merges or fails (`operators.buffering`). What is full behind it
    stops nothing before it.
  - 3 to 7 and 9 are asked by one operator, the source of lines (`LineSource._allowed`), in this order: 1 to 4,
    5 with 6, 9, 7. The first that says no decides; a tick of control or room downstream runs the source again.
  - 4 holds from the start until the launcher has connected, too. It also stops the output operator, which keeps what
    does not fit under a capability. So the output's frontier stands, and 5 stops the sources of all workers, not only
    of the one whose connection is full.
  - 8 stops Spark's driver, before lines reach a worker.

Which one holds in which case
  - A slow operator on the same worker: 1. Its queue closes, and sources before it get "full", whatever operators that
    never refuse records (stateful operators, joins) stand between.
  - A slow operator on another worker: 2. Its queue closes (1 there), it gives no credit back, and senders stop when the
    window of that one worker is used up: what they read next might be for it.
  - A slow network, or a process that is suspended: 2 first, for the records of each channel; 3 when records are large,
    since credit counts records and the window may be more bytes than a process should keep.
  - A slow reader of the output: 4, then 5.
  - A worker that is slow as a whole, so that epochs do not close: 5 everywhere; and on the fast workers 6, because what
    they read lies in the stash of stateful operators, which takes in everything and so never closes a gate.
  - A source that is faster than all: 1 within a worker; 7 if the dataflow takes everything in and epochs close late.
  - Spark ahead of the job: 8, and staging's file for what is staged and not committed.

Where two overlap
  - 2 and 3 both bound what is sent to one process. 2 counts records for each channel and each worker, 3 bytes of all
    channels to a process. 3 alone would not notice records that arrived and wait in a queue there; 2 alone would not
    notice ten thousand records of a megabyte.
  - 1 and 6 both bound what waits in a worker. 1 ends when an operator takes records; 6 counts those that a stateful
    operator took and may not apply yet. 6 holds only while 5 does: without lag the stash is emptied each epoch.
  - 4 and 5: 4 stops the worker whose connection is full at once; 5 stops all, some epochs later.
  - 5 and 7 both bound what is in the dataflow at a time: 20 epochs of 256 batches at most. 5 alone would admit any
    amount in one long epoch, 7 alone any number of epochs.
  - 8 and 5: a committed batch waits in the source's queue, outside of the dataflow, so 5 does not see it.

`handoffs` has the argument why no operator waits for ever on 1 and 2. 3 to 7 end by themselves: sockets are emptied
whatever the source does, and time goes on, which closes epochs.
"""

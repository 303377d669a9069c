"""Operators, the streams between them, and the capabilities they hold.

graph, builder    one dataflow on one worker; how operators are put into it
graph_progress    its counts: what this worker knows of them, and tells
capability        the right to send at a time, and references to times of records being consumed
channels, pact    how a batch gets from an output to its inputs, and to which worker
origin            what a source says of a batch: where it is from
session           how an operator sends
input_handle, probe, notificator    how a program sends, waits, and is told that a time is over
scopes, signature    scopes within scopes; what must be equal on all workers
own_records       each consumer of a stream has records of its own; record_copies: how they are copied
gathering         small parts of batches for one worker leave as one message
run_queue, context    which operators run next; what they get from their worker
folds, checks     what folds per key are held to, always and if the environment asks for it
given             what a program gives to a call, held to what was asked for
error_notes, running_place    whose line, which record: of an error, and of a thread just now
leaked_capability    capabilities that were forgotten
picture           Mermaid and DOT
operators/        the library of operators
fusion/           stateless operators in a row, run as one generated function
flow_control/     bounded queues and credit, with the page on backpressure
capture/          capture and replay of streams
"""

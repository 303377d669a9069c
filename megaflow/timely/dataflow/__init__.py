"""Operators, the streams between them, and the capabilities they hold.

graph, builder    one dataflow on one worker; how operators are added to it
graph_progress    progress of one dataflow: what this worker knows, and what it sends to the others
capability        the right to send at a time, and references to times of records being consumed
channels, pact    the way of a batch from an output to its inputs; which worker receives it
partition_tag     the file or partition that a batch came from
session           how an operator sends
input_handle, probe, notificator    how a program sends, waits, and gets notifications of completed times
scopes, signature    scopes within scopes; what must be equal on all workers
own_records       gives each consumer of a stream its own records; record_copies: how they are copied
batch_coalescer   sends small parts of batches for one worker as one message
run_queue, context    which operators run next; what they get from their worker
folds, checks     the rules of folds per key: those always enforced, and those that the environment switches on
argument_checks   checks of arguments that a program passes
error_notes, running_place    the user's line and the record: of an error, and of a running thread
other_forms    what to write in place of a form from the texts on timely dataflow
leaked_capability    warnings about forgotten capabilities
picture           Mermaid and DOT
operators/        the library of operators
fusion/           stateless operators in a row, run as one generated function
flow_control/     bounded queues and credit, with the page on backpressure
capture/          capture and replay of streams
"""

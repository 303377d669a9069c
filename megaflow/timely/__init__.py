"""Timely dataflow in Python: the engine under megaflow, usable alone.

    from megaflow.timely import execute_from_args, InputHandle, ProbeHandle

progress       counts of the times that may still arrive, and the frontiers that follow from them
communication  frames and links between workers; communication.codec turns values into bytes
dataflow       graphs of operators: builder, capabilities, operators, fusion, flow control, capture
rescale        workers that join and leave while dataflows run
runtime        starts the workers of this process from its arguments
worker         steps one worker
push_pull      channels of messages between workers, without any dataflow
order          logical times; path_summary: the effect of a path on them
membership     the workers of a cluster, as a value
dispatch       handlers of arriving messages; dataflows: the dataflows that a worker runs
progcaster     numbered batches of progress, where counts meet channels
explain        why a time is not complete
log            typed events
scheduled_calls    callbacks at times of the clock

A name below is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.operator_builder": ("OperatorBuilder",),
    "megaflow.program": (
        "Scope", "Stream", "Worker", "example", "execute", "execute_from_args", "initialize_from_args",
    ),
    "megaflow.synchronization": ("Barrier", "Sequencer"),
    "megaflow.timely.dataflow.builder": ("Input", "Output"),
    "megaflow.timely.dataflow.capability": ("Capability",),
    "megaflow.timely.dataflow.capture.capture": ("EventReader", "EventWriter"),
    "megaflow.timely.dataflow.capture.event_format": ("Messages", "Progress"),
    "megaflow.timely.dataflow.capture.event_link": ("EventLink",),
    "megaflow.timely.dataflow.context": ("OperatorInfo",),
    "megaflow.timely.dataflow.input_handle": ("InputHandle",),
    "megaflow.timely.dataflow.notificator": ("FrontierNotificator",),
    "megaflow.timely.dataflow.operators.branching": ("Err", "Ok"),
    "megaflow.timely.dataflow.pact": ("Broadcast", "Exchange", "Pipeline"),
    "megaflow.timely.dataflow.probe": ("ProbeHandle",),
    "megaflow.timely.dataflow.operators.buffering": ("BufferHandle",),
    "megaflow.timely.dataflow.operators.sources": ("UnorderedHandle",),
    "megaflow.timely.order": ("Product", "Time", "Timestamp", "less_equal", "less_than"),
    "megaflow.timely.path_summary": ("PathSummary",),
    "megaflow.timely.progress.antichain": ("Antichain",),
    "megaflow.timely.push_pull": ("ChannelAllocator", "Pull", "Push", "initialize"),
    "megaflow.timely.runtime": ("Config",),
}  # module -> names that it offers

_OTHERWISE = {
    "CapabilitySet": "keep a list of Capability objects; downgrade() or release() each",
    "Notificator": "the notificator of unary_notify and binary_notify is a FrontierNotificator",
    "execute_directly": "write execute(Config.thread(), main)",
    "source": "write scope.source(name, build)",
}  # names of the texts on timely dataflow -> what to write here

__getattr__, __dir__, __all__ = offer(globals(), _NAMES, otherwise=_OTHERWISE)

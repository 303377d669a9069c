"""Timely dataflow in Python: the engine under megaflow, usable alone.

    from megaflow.timely import execute_from_args, InputHandle, ProbeHandle
"""

from megaflow.program import Scope, Stream, Worker, example, execute, execute_from_args
from megaflow.timely.dataflow.builder import Input, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.capture import EventReader, EventWriter
from megaflow.timely.dataflow.capture.event_format import Messages, Progress
from megaflow.timely.dataflow.capture.event_link import EventLink
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.fusion.stage import Err, Ok
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.notificator import FrontierNotificator
from megaflow.timely.dataflow.pact import Broadcast, Exchange, Pipeline
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.unordered import UnorderedHandle
from megaflow.timely.execute import Config
from megaflow.timely.order import Product, Time, less_equal, less_than
from megaflow.timely.progress.antichain import Antichain

__all__ = [
    "Antichain",
    "Broadcast",
    "Capability",
    "Config",
    "Err",
    "EventLink",
    "EventReader",
    "EventWriter",
    "Exchange",
    "FrontierNotificator",
    "Input",
    "InputHandle",
    "Messages",
    "Ok",
    "OperatorInfo",
    "Output",
    "Pipeline",
    "ProbeHandle",
    "Product",
    "Progress",
    "Scope",
    "Stream",
    "Time",
    "UnorderedHandle",
    "Worker",
    "example",
    "execute",
    "execute_from_args",
    "less_equal",
    "less_than",
]

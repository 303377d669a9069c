"""Timely dataflow in Python: the engine under megaflow, usable alone.

    from megaflow.timely import execute_from_args, InputHandle, ProbeHandle
"""

from megaflow.front import Scope, Stream, Worker, example, execute, execute_from_args
from megaflow.timely.dataflow.builder import OperatorInfo
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.input import InputHandle
from megaflow.timely.dataflow.pact import Broadcast, Exchange, Pipeline
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.execute import Config
from megaflow.timely.order import Product, less_equal, less_than
from megaflow.timely.progress.antichain import Antichain

__all__ = [
    "Antichain",
    "Broadcast",
    "Capability",
    "Config",
    "Exchange",
    "InputHandle",
    "OperatorInfo",
    "Pipeline",
    "ProbeHandle",
    "Product",
    "Scope",
    "Stream",
    "Worker",
    "example",
    "execute",
    "execute_from_args",
    "less_equal",
    "less_than",
]

"""The live page of a job: what it shows, and the server that shows it. Never imported by a job without it.

server    the port: the page, its files, events, metrics, commands
access    who may read and steer
hub       the news of the job, for all viewers
view      the state of the page: a snapshot and its changes
patches   differences between two documents, and the values that a document may have
grids     bins of one operator: owners, moves and load, a character per bin
spans     moves, joins, leaves, checkpoints and restarts, with their begin and end
metrics   metrics for Prometheus
curves    points of the charts: the last minutes fine, earlier ones coarse
static/   the page itself, with uPlot

A name below is loaded from its module when it is first used, so a job without `--web` loads none of them. Its type is
in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.web.access": ("Access", "checked_token", "parse_place"),
    "megaflow.web.hub": ("ENDED", "Hub"),
    "megaflow.web.metrics": ("Metrics",),
    "megaflow.web.server": ("VERSION", "Door", "PageServer"),
    "megaflow.web.view": ("View",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)

"""The types of the names that this package loads on first use."""

from megaflow.web.access import Access as Access
from megaflow.web.access import checked_token as checked_token
from megaflow.web.access import parse_place as parse_place
from megaflow.web.hub import ENDED as ENDED
from megaflow.web.hub import Hub as Hub
from megaflow.web.metrics import Metrics as Metrics
from megaflow.web.server import VERSION as VERSION
from megaflow.web.server import Door as Door
from megaflow.web.server import PageServer as PageServer
from megaflow.web.view import View as View

"""The screen of `megaflow top`. Needs textual: pip install 'megaflow[top]'."""

from collections.abc import Callable
from threading import Event, Thread
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Log, Static

from megaflow.cli.top_model import HEADINGS, TopModel
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import JobStatus
from megaflow.errors import MegaflowError
from megaflow.job.watching import Wanted, Watcher, Where

LINES_MAX: Final = 1_000  # of what happened


class TopApp(App[str]):
    """The state of a job, live. The result is a message for the user, if the job has ended or cannot be watched."""

    CSS = """
    #head { height: auto; padding: 0 1; text-style: bold; }
    #bins { height: 2fr; padding: 0 1; }
    #workers { height: auto; max-height: 2fr; }
    #events { height: 1fr; min-height: 3; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("o", "next_operator", "Next operator"),
        ("p", "pause", "Pause or go on"),
    ]

    def __init__(self, where: Where) -> None:
        super().__init__()
        self._model = TopModel()
        self._ended = Event()
        self._is_paused = False
        self._watcher = Watcher(where, Wanted(ledger=False), pause=self._ended.wait)

    def compose(self) -> ComposeResult:
        """Make the parts of the screen, from top to bottom."""
        yield Static(id="head", markup=False)
        yield Static(id="bins", markup=False)
        yield DataTable(id="workers", cursor_type="none")
        yield Log(id="events", highlight=False, max_lines=LINES_MAX)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to watch, on a thread of its own. It is a daemon, so that leaving does not wait for an answer."""
        self.query_one(DataTable).add_columns(*HEADINGS)
        self._show()
        Thread(target=self._watch, name="megaflow-top", daemon=True).start()

    def on_unmount(self) -> None:
        """Let the thread end."""
        self._ended.set()

    def on_resize(self, event: Resize) -> None:
        """Fit the grid into the new size."""
        self._show()

    def action_next_operator(self) -> None:
        """Show the bins of the next operator."""
        self._model.next_operator()
        self._show()

    def action_pause(self) -> None:
        """Keep the screen as it is, or go on."""
        self._is_paused = not self._is_paused
        self._show()

    def _watch(self) -> None:
        """Show what comes until the job ends."""
        result = "the job has ended"
        try:
            for news in self._watcher.watch():
                if self._ended.is_set():
                    return
                self._call(self._take, news)
        except MegaflowError as error:
            result = str(error)
        if not self._ended.is_set():
            self._call(self.exit, result)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the screen's thread, from the other one; do nothing if the user has left."""
        try:
            self.call_from_thread(function, *arguments)
        except RuntimeError:
            if not self._ended.is_set():  # otherwise the screen's event loop is closed
                raise

    def _take(self, news: JobEvent | JobStatus) -> None:
        self._model.take(news)
        if isinstance(news, JobEvent):
            self.query_one(Log).write_line(self._model.last_line)
        self._show()

    def _show(self) -> None:
        if self._is_paused:
            self.query_one("#head", Static).update(f"{self._model.head()} (paused: press p)")
            return
        self.query_one("#head", Static).update(self._model.head())
        bins, table = self.query_one("#bins", Static), self.query_one(DataTable)
        bins.update(self._model.grid(max(1, bins.content_size.width), max(2, bins.content_size.height)))
        table.clear()
        for row in self._model.rows():
            table.add_row(*row)


def show(where: Where) -> str | None:
    """Show a job until it ends or the user leaves; return what to tell then."""
    return TopApp(where).run()

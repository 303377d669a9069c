"""Logging: what megaflow itself prints, and the logging setup of a script, which `capture` reads and `take_over` uses.

A script whose function is pickled by value does not run in its workers, so its calls of `logging` do not run either.

1. A worker takes over the levels and filters of loggers. Its handlers print on standard error, in the format of the
   script's handlers and at their levels. The launcher puts the worker's name in front.
2. Only handlers that print on the console are taken over. A file or a connection belongs to one process. If the script
   has no handler for the console, a handler that prints on standard error replaces its others, so that no line is lost.
   Streams in memory do not count.
3. A logger for which the worker has a handler stays as it is: a module that the worker has imported set it up. So each
   line is printed once.
4. Formatters and filters travel one by one. If a formatter cannot be pickled, or cannot be loaded in the worker,
   Python's default format replaces it. Such a filter is left out.
5. megaflow prints its own log lines on standard error by default, as Python prints warnings of any logger. If the
   program has a handler, `OwnLines` prints nothing, so that each line is printed once. A line that nothing reads is
   dropped and counted: see `megaflow.job.patient_stream`.
6. What megaflow itself adds to loggers is not part of the script's setup. Another job of the same process may have
   added it.
"""

import contextlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from megaflow.job.patient_stream import WAIT_SECONDS, dropped_text, has_room
from megaflow.quick_dataclass import dataclass

Packed: TypeAlias = bytes  # a pickle; b"" if there is none


@dataclass(frozen=True, slots=True)
class HandlerSetup:
    """A handler of the script."""

    level: int
    formatter: Packed
    filters: tuple[Packed, ...]


@dataclass(frozen=True, slots=True)
class LoggerSetup:
    """A logger of the script that differs from a new one; "" is the root."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    filters: tuple[Packed, ...]
    handlers: tuple[HandlerSetup, ...]


class OwnLines(logging.Handler):
    """Handler that prints megaflow's log lines on standard error, unless the program has a handler for them."""

    _dropped = 0  # lines not yet reported

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        handlers: list[logging.Handler] = []
        while logger is not None:
            handlers += logger.handlers
            logger = logger.parent if logger.propagate else None
        others = any(not isinstance(handler, OwnLines) for handler in handlers)
        if handlers[0] is not self or others or sys.stderr is None:
            return
        if not has_room(sys.stderr, 0.0 if self._dropped else WAIT_SECONDS):
            self._dropped += 1
            return
        note, self._dropped = dropped_text(self._dropped), 0
        with contextlib.suppress(OSError, ValueError):  # it is closed or has no reader, which must not end a job
            head = "megaflow: " if self.formatter is None else ""  # a formatter of `log_records` names the logger
            sys.stderr.write(f"{note}{head}{self.format(record)}\n")
            sys.stderr.flush()


def print_own_lines(name: str, level: int = logging.NOTSET) -> None:
    """Print the lines of one of megaflow's loggers from now on: see rule 5. A second call has no effect."""
    logger = logging.getLogger(name)
    if not any(isinstance(handler, OwnLines) for handler in logger.handlers):
        logger.addHandler(OwnLines(level))


def capture(dumps: Callable[[object], bytes]) -> bytes:
    """Return this process's logging setup for `take_over`, b"" if there is none. `dumps` pickles by value."""
    loggers = [logging.getLogger(), *_named()]
    on_console = any(map(is_console, (handler for logger in loggers for handler in logger.handlers)))
    setups = [*filter(None, (_setup_of(logger, on_console, dumps) for logger in loggers))]
    disabled = logging.root.manager.disable
    return dumps((disabled, setups)) if setups or disabled else b""


def take_over(captured: bytes) -> None:
    """Set up the logging of this process as `capture` found it in the script: see rules 1 to 3."""
    disabled, setups = pickle.loads(captured)
    logging.disable(disabled)
    for setup in setups:
        logger = logging.getLogger(setup.name)
        if any(not isinstance(handler, OwnLines) for handler in logger.handlers):
            continue
        logger.setLevel(setup.level)
        logger.propagate, logger.disabled = setup.propagate, setup.disabled
        _add_filters(logger, setup.filters)
        for made in setup.handlers:
            handler = logging.StreamHandler()
            handler.setLevel(made.level)
            handler.setFormatter(_unpacked(made.formatter) or logging.Formatter(logging.BASIC_FORMAT))
            _add_filters(handler, made.filters)
            logger.addHandler(handler)


def _add_filters(to: logging.Logger | logging.Handler, packed: Iterable[Packed]) -> None:
    for each in filter(None, map(_unpacked, packed)):
        to.addFilter(each)


def _named() -> Iterator[logging.Logger]:
    for _, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield logger


def is_console(handler: logging.Handler) -> bool:
    """Return whether a handler prints on this process's standard output or standard error."""
    streams = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is each for each in streams)


def _is_elsewhere(handler: logging.Handler) -> bool:
    """Return whether lines go to a place outside the process that is not the console."""
    if isinstance(handler, logging.FileHandler):
        return handler.baseFilename != os.devnull
    return not isinstance(handler, logging.StreamHandler | logging.NullHandler | OwnLines)


def _setup_of(logger: logging.Logger, on_console: bool, dumps: Callable[[object], bytes]) -> LoggerSetup | None:
    """Return the setup of a logger. None if it is like a new one."""
    is_root = logger is logging.root
    kept = [each for each in logger.handlers if (is_console if on_console else _is_elsewhere)(each)]
    chosen = [each for each in logger.filters if not _is_own(each)]
    default = logging.WARNING if is_root else logging.NOTSET
    if not kept and logger.level == default and logger.propagate and not (logger.disabled or chosen):
        return None
    handlers = tuple(_handler_of(each, dumps) for each in kept)
    if not on_console and kept:  # the handlers would print the same lines
        handlers = (min(handlers, key=lambda each: each.level),)
    filters = tuple(_packed(each, dumps) for each in chosen)
    name = "" if is_root else logger.name
    return LoggerSetup(name, logger.level, logger.propagate, logger.disabled, filters, handlers)


def _is_own(each: object) -> bool:
    """Return whether a filter, a function or an object, is one of megaflow's."""
    return str(getattr(each, "__module__", "")).startswith("megaflow.")


def _handler_of(handler: logging.Handler, dumps: Callable[[object], bytes]) -> HandlerSetup:
    formatter = handler.formatter or logging.Formatter()
    return HandlerSetup(
        handler.level, _packed(formatter, dumps), tuple(_packed(each, dumps) for each in handler.filters)
    )


def _packed(value: object, dumps: Callable[[object], bytes]) -> Packed:
    try:
        return dumps(value)
    except Exception:  # objects may raise anything
        return b""


def _unpacked(packed: Packed) -> Any:
    """Return the value. None if it cannot be loaded here."""
    try:
        return pickle.loads(packed) if packed else None
    except Exception:  # whatever its module raises
        return None

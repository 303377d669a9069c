"""Errors of databases that may pass: of locks, lost connections and servers that start, by what each driver says.

SQLite has codes, PostgreSQL an SQLSTATE, and MySQL and MariaDB error numbers. MySQL's drivers also raise an
OperationalError for a column that does not exist. So the names of errors count for other drivers only.

No patience can mend a wrong password, an unknown database or a missing right. PostgreSQL's drivers say of a failed
login only what the server wrote, without its SQLSTATE. So the sentence decides:
1. It may be in the server's language. Then it counts that the server has asked for a password before it refused: a
   server that starts, stops or is full does not ask.
2. An address may name several hosts. Only if all of them refuse, patience is in vain.
3. Any other failure to connect may pass: a refused connection, a name that cannot be resolved, a timeout.
"""

import re
import sqlite3
from typing import Any, Final

from megaflow.connect.transactions import MYSQL, POSTGRESQL_DRIVERS, driver_of

PASSING_STATES: Final = ("08", "40", "53", "55P03", "57")  # SQLSTATE: connection, rollback, room, lock, operator
PASSING_SQLITE: Final = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_FULL,  # as PostgreSQL's class 53
}  # fmt: skip
FILE_SQLITE: Final = {  # the file is at fault, or the disk, and no row
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
DAMAGED_SQLITE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
PASSING_MYSQL: Final = {
    0,  # of a connection that is closed
    *(1020, 1205, 1206, 1213, 1614, 1637),  # rows that others have changed or locked, deadlocks
    *(1021, 1040, 1041, 1114, 1203, 1226),  # no room, too many connections, a full table
    *(1042, 1043, 1047, 1053, 1077, 1079, 1927, 3169, 4031),  # a server that starts, stops or joins; a killed session
    *(1158, 1159, 1160, 1161, 2002, 2003, 2006, 2012, 2013, 2055),  # lost and refused connections
    *(1317, 1969, 3024),  # an interrupted statement
}
DENIED_MYSQL: Final = {1044, 1142, 1143, 1227}  # to a database, a table, a column, an operation
DENIED_STATE: Final = "42501"  # SQLSTATE
PASSING_NAMES: Final = {"OperationalError", "InterfaceError"}  # that drivers must give to such errors
REFUSED: Final = re.compile(
    r"failed: .*(?:authentication failed|no password supplied|does not exist|permission denied for|not permitted|"
    r"no pg_hba\.conf entry|pg_hba\.conf rejects|is not currently accepting connections)"
)
SAID_BY_SERVER: Final = re.compile(r"failed: \S+:  ")  # the severity has two spaces behind it, in any language
PASSING_LOGINS: Final = re.compile(r"database system is|too many|connection slots are reserved|terminating connection")
HOST: Final = "\n- host:"  # before each failure, if an address has several hosts


class TryAgain(Exception):
    """Raised in a transaction that is to be tried again."""


class CannotConnect(Exception):
    """A driver's error, without what is secret; `passes`: whether it may succeed later."""

    def __init__(self, text: str, passes: bool) -> None:
        super().__init__(text)
        self.passes = passes


def said(error: Exception) -> str:
    """Return the kind and text of a driver's error in one line. The text of a CannotConnect begins with its kind."""
    kind = "" if isinstance(error, CannotConnect) else f"{type(error).__name__}: "
    end = "; the file is damaged: restore it from a backup" if _sqlite_code(error) in DAMAGED_SQLITE else ""
    return f"{kind}{' '.join(str(error).split())}{end}"


def is_of_file(error: Exception) -> bool:
    """Tell whether SQLite's file, or its disk, is at fault, so that no row is."""
    return _sqlite_code(error) in FILE_SQLITE


def _sqlite_code(error: Exception) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def may_pass(error: Exception) -> bool:
    """Tell whether what has failed may succeed later, by what drivers say: codes, SQLSTATE, names of errors."""
    if isinstance(error, CannotConnect):
        return error.passes
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in PASSING_SQLITE or code == sqlite3.SQLITE_READONLY_DBMOVED
    if driver_of(type(error)) in MYSQL:
        return _number_of(error) in PASSING_MYSQL
    if state := state_of(error):
        return state.startswith(PASSING_STATES)
    if is_refused(error):
        return False
    return isinstance(error, TryAgain | ConnectionError | TimeoutError) or is_called(error, PASSING_NAMES)


def state_of(error: Exception) -> str:
    """Return the SQLSTATE of an error; "": it has none.

    >>> state_of(ValueError({"C": "40P01"}))
    '40P01'
    """
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):  # pg8000's
        state = error.args[0].get("C")
    return state if isinstance(state, str) else ""


def _number_of(error: Any) -> Any:
    """Return the number of an error of MySQL."""
    return getattr(error, "errno", None) or (error.args[0] if error.args else 0)


def is_denied(error: Any) -> bool:
    """Tell whether a right is missing, by what PostgreSQL and MySQL say.

    >>> is_denied(ValueError({"C": "42501"})), is_denied(None)
    (True, False)
    """
    if driver_of(type(error)) in MYSQL:
        return _number_of(error) in DENIED_MYSQL
    return isinstance(error, Exception) and state_of(error) == DENIED_STATE


def is_called(error: Exception, names: set[str]) -> bool:
    """Tell whether an error is of one of the kinds that DB-API 2 gives these names."""
    return not names.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def is_final(failure: Exception) -> bool:
    """Tell whether a failure of `Database` comes from an error of the driver that cannot pass."""
    cause = failure.__cause__
    return isinstance(cause, Exception) and not may_pass(cause)


def is_refused(error: Any) -> bool:
    """Tell whether an error without an SQLSTATE is a refused login to PostgreSQL."""
    if driver_of(type(error)) not in POSTGRESQL_DRIVERS:
        return False
    has_asked = bool(getattr(getattr(error, "pgconn", None), "used_password", False))
    first, *attempts = str(error).split(HOST)
    return all(is_refusal(text, has_asked) for text in attempts or [first])


def is_refusal(text: str, has_asked: bool) -> bool:
    """Tell whether a login was refused, by what the driver says and by whether the server has asked for a password.

    >>> is_refusal('… failed: FATAL:  password authentication failed for user "ann"', True)
    True
    >>> is_refusal('… failed: FATALE:  il database "shop" non esiste', True)
    True
    >>> is_refusal("… failed: FATAL:  the database system is starting up", False)
    False
    >>> is_refusal("… failed: Connection refused", False)
    False
    """
    is_refused = REFUSED.search(text) or (has_asked and SAID_BY_SERVER.search(text))
    return bool(is_refused) and not PASSING_LOGINS.search(text)

"""Addresses of databases: their forms, and the parts of them that may be shown.

Nothing here keeps or raises a password. An address is understood only if it is certain where its password stands: one
with another `@`, `:` or `/` is not, and then all of its words are secret.
"""

import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from megaflow.errors import UsageError

Place: TypeAlias = str | Callable[[], Any]
"""Where a database is: see `megaflow.connect.database`."""

PLACES: Final = "sqlite:PATH, postgresql://USER@HOST/NAME, env:NAME, file:PATH, or a function that returns a connection"
POSTGRESQL: Final = ("postgresql://", "postgres://")
ADDRESS: Final = re.compile(  # does not match an address with a password in another place
    r"postgres(?:ql)?://(?:[^:@/?#\[\]]*(?::(?P<password>[^@/?#\[\]]*))?@)?"
    r"(?P<place>(?:[^:@/?#\[\],]*|\[[0-9A-Fa-f:.]*(?:%25[\w.-]+)?\])(?::\d*)?(?:,[^:@/?#\[\],]*(?::\d*)?)*(?:/[^@?#:]*)?)"
    r"(?:\?(?P<query>[^@#]*))?"
)
QUOTE: Final = "'"
SETTING: Final = r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s'\\]+)"  # NAME=VALUE, as PostgreSQL's own library reads it
SETTINGS: Final = re.compile(rf"\s*{SETTING}(?:\s+{SETTING})*\s*")
PUBLIC_OPTIONS: Final = {  # of PostgreSQL's own library; other options may be secret
    "host", "hostaddr", "port", "user", "dbname", "passfile", "service", "application_name",
    "fallback_application_name", "client_encoding", "options", "connect_timeout", "tcp_user_timeout", "keepalives",
    "keepalives_idle", "keepalives_interval", "keepalives_count", "replication", "sslmode", "sslnegotiation",
    "sslcompression", "sslcert", "sslcertmode", "sslrootcert", "sslcrl", "sslcrldir", "sslsni", "requiressl",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "min_protocol_version", "max_protocol_version",
    "require_auth", "channel_binding", "requirepeer", "gssencmode", "gssdelegation", "gsslib", "krbsrvname",
    "target_session_attrs", "load_balance_hosts",
}  # fmt: skip
PUBLIC_WORDS: Final = {"postgres", "postgresql", "host", "hostaddr", "port", "user", "dbname", "password", "localhost"}


def absolute(place: Place) -> Place:
    """Return a place whose file, if it has one, does not depend on the current directory of a process."""
    if not isinstance(place, str) or not place.startswith(("sqlite:", "file:")):
        return place
    kind, _, path = place.partition(":")
    return f"{kind}:{os.path.abspath(os.path.expanduser(path))}"


def check_place(place: Place) -> None:
    """Raise UsageError unless this can be a place. The error has no word of it that may be secret."""
    if callable(place):
        return
    if not isinstance(place, str):
        raise UsageError(f"a database must be one of {PLACES}, not {type(place).__name__}")
    kind, colon, name = place.partition(":")
    if not colon or not name or not (kind in ("sqlite", "env", "file") or place.startswith(POSTGRESQL)):
        raise UsageError(f"a database must be one of {PLACES}")
    if kind == "sqlite" and any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are not UTF-8
        raise UsageError(f"SQLite takes only paths in UTF-8, and {name!r} is none: rename the file or its folder")
    if place.startswith(POSTGRESQL):
        try:
            url = urlsplit(place)
            has_password = url.password is not None or "password" in parse_qs(url.query)
        except ValueError:
            has_password = True
        if has_password:
            raise UsageError(
                "the address of a database must not contain its password, because programs, logs and process lists "
                "would show it: keep the password in ~/.pgpass or PGPASSWORD, or the address in env:NAME or file:PATH"
            )


def shown_address(text: str) -> str:
    """Return the host and name of a database; "" if the address is not understood.

    >>> shown_address("postgresql://ann:b_42@db:5432/shop"), shown_address("postgres://ann:b_42@/shop?host=/run/pg")
    ('db:5432/shop', '/run/pg/shop')
    >>> shown_address("postgresql://ann:b@42@db/shop"), shown_address("host=db user=ann dbname=shop password=b_42")
    ('', 'db/shop')
    """
    if (address := ADDRESS.fullmatch(text)) is None:
        settings = dict(_settings(text))
        signs = ("host", ""), ("port", ":"), ("dbname", "/")
        return "".join(f"{sign}{settings[name].strip(QUOTE)}" for name, sign in signs if name in settings)
    hosts = parse_qs(address["query"] or "").get("host", [])  # such as the folder of a socket
    return f"{''.join(hosts)}{address['place']}"


def secret_of(text: str) -> str:
    """Return the part of a database's address that has its password, "" if it has none; all if that is not certain.

    >>> secret_of("postgresql://ann@db:5432/shop"), secret_of("postgresql://ann:b_42@db/shop?sslmode=require")
    ('', 'b_42')
    >>> secret_of("postgresql://ann:b/42@db/shop"), secret_of("host=db user=ann"), secret_of("host=db password=b_42")
    ('postgresql://ann:b/42@db/shop', '', 'b_42')
    >>> secret_of("mysql://ann:b_42@db/shop?charset=utf8")
    'mysql://ann:b_42@db/shop?charset=utf8'
    """
    if (address := ADDRESS.fullmatch(text)) is not None:
        query = parse_qsl(address["query"] or "", keep_blank_values=True)
        hidden = [value for name, value in query if name not in PUBLIC_OPTIONS]
        return " ".join(filter(None, [address["password"], *hidden]))
    if settings := _settings(text):
        return " ".join([value for name, value in settings if name not in PUBLIC_OPTIONS])
    return "" if text.startswith("sqlite:") else text


def _settings(text: str) -> list[tuple[str, str]]:
    """Return the settings of an address of the form NAME=VALUE …; [] if it has another form."""
    return re.findall(SETTING, text) if SETTINGS.fullmatch(text) else []


def without_secrets(text: str, secret: str) -> str:
    """Return a text without the words of another one, except for a few that reveal nothing.

    >>> without_secrets("user ann has not the password blue_42", "postgresql://ann:blue_42@db/shop")
    'user … has not the password …'
    """
    words = {*re.findall(r"\w+", secret), *re.findall(r"\w+", unquote(secret))} - PUBLIC_WORDS
    return re.sub(r"\w+", lambda found: "…" if found[0] in words else found[0], text)

"""Who may read and steer over a port of the page, and the headers of every answer. Values only.

A browser runs the scripts of any site beside the page. It attaches the page's cookie to each request to the page's
host, whichever script has made the request. So:

1. Host. A request names this machine: a loopback address or `localhost` and, if the port is open beyond loopback, also
   any address, the machine's name and the host of the option. Otherwise the name of a foreign site could first lead to
   the site and then to this machine (DNS rebinding), and the site's script would read the page as its own. The port in
   the header is free, because a tunnel may have another one.
2. Origin. If a request has an Origin, it is the page's own. `Sec-Fetch-Site`, which browsers add, is `same-origin` or
   `none`. Only the page itself may be opened from another site, by a link.
3. Token. The printed link has the token. The server gives the browser a cookie in exchange, which scripts cannot read
   and other sites cannot use. Commands always need the token. On loopback, reading does not need it.
4. Commands. A request with the cookie also needs an Origin and the header `X-Megaflow`. A foreign script can add
   neither without a preflight, which the server refuses.
5. A program sends the token as `Authorization: Bearer`. Browsers never add this by themselves, so rules 1, 2 and 4 do
   not apply to such a request. Prometheus reads /metrics so, by any name of this machine.
6. /livez and /readyz tell only whether the job is there. They need no token and accept any Host, as probes send.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text, is_loopback, is_port, may_be_host

LOOPBACK: Final = "127.0.0.1"
TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,256}")  # characters that need no quoting in a link, header or cookie
TOKEN_BYTES: Final = 24
LINK_TOKEN: Final = "token"  # the parameter of a link
STEERS: Final = "X-Megaflow"  # the header of a command from the page
PROBES: Final = ("/livez", "/readyz")
OPEN_LINK: Final = "Open the link that the job has printed: it has the token."

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "megaflow",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request tells about its sender. Headers that may come once have all their values here."""

    path: str
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    site: str = ""  # Sec-Fetch-Site
    mode: str = ""  # Sec-Fetch-Mode
    cookie: str = ""  # the value of the page's cookie
    bearers: Sequence[str] = ()  # values of Authorization
    steers: bool = False  # whether it has the header STEERS


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a request that may not do what it asks for."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of visitors at one port."""

    host: str  # on which it listens
    port: int
    token: str
    may_steer: bool = False
    machine: str = ""  # this machine's name

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the port."""
        return is_loopback(self.host)

    @property
    def cookie_name(self) -> str:
        """The cookie's name: a browser has one jar for all ports of a host."""
        return f"megaflow-{self.port}"

    def url(self, host: str) -> str:
        """Return the page's address, without the token. `host` replaces an address that stands for all."""
        return f"http://{address_text((host, self.port))}/"

    def link(self, host: str) -> str:
        """Return the address to open in a browser, with the token if the page needs it."""
        return f"{self.url(host)}?{LINK_TOKEN}={self.token}" if self.may_steer or not self.is_local else self.url(host)

    def is_token(self, text: str) -> bool:
        """Return whether this is the token; its time does not depend on where they differ."""
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def judge_reading(self, visit: Visit) -> Refused | None:
        """Return why a request may not read. None: it may."""
        if visit.path in PROBES:
            return None
        if visit.bearers:
            return self._judge_bearer(visit)
        return self._judge_browser(visit) or (None if self.is_local else self._judge_token(visit.cookie, OPEN_LINK))

    def judge_link(self, visit: Visit, token: str) -> Refused | None:
        """Return why a request may not exchange the token of a link for a cookie. None: it may."""
        return self._judge_browser(visit) or self._judge_token(token, "The token in the link is wrong.")

    def judge_steering(self, visit: Visit) -> Refused | None:
        """Return why a request may not steer the job. None: it may."""
        if not self.may_steer:
            return Refused(HTTPStatus.FORBIDDEN, "This page only shows the job. Start it with --web-control to steer.")
        if visit.bearers:
            return self._judge_bearer(visit)
        if refused := self._judge_browser(visit):
            return refused
        if not visit.origins or not visit.steers:
            return Refused(HTTPStatus.FORBIDDEN, f"A command needs the headers Origin and {STEERS}.")
        return self._judge_token(visit.cookie, OPEN_LINK)

    def _judge_bearer(self, visit: Visit) -> Refused | None:
        kind, _, token = visit.bearers[0].partition(" ")
        if len(visit.bearers) == 1 and kind.lower() == "bearer" and self.is_token(token.strip()):
            return None
        return Refused(HTTPStatus.UNAUTHORIZED, "The token is wrong.")

    def _judge_token(self, text: str, why: str) -> Refused | None:
        return None if self.is_token(text) else Refused(HTTPStatus.UNAUTHORIZED, why)

    def _judge_browser(self, visit: Visit) -> Refused | None:
        """Return which of the rules 1 and 2 a request breaks. None: none."""
        if len(visit.hosts) != 1 or not self._is_own(visit.hosts[0]):
            why = "The Host header does not name this machine. Open the page by its address."
            return Refused(HTTPStatus.FORBIDDEN, why)
        has_other = bool(visit.origins) and [*map(netloc_of, visit.origins)] != [visit.hosts[0].lower()]
        is_opened = visit.path == "/" and visit.mode == "navigate"
        if has_other or (visit.site not in ("", "same-origin", "none") and not is_opened):
            return Refused(HTTPStatus.FORBIDDEN, "The request comes from another site.")
        return None

    def _is_own(self, text: str) -> bool:
        """Return whether the value of a Host header names this machine."""
        host = host_of(text)
        if host is None:
            return False
        names = () if self.is_local else (self.host.lower(), self.machine.lower())
        return is_loopback(host) or (host != "" and host in names) or (not self.is_local and is_address(host))


def host_of(text: str) -> str | None:
    """Return the host of HOST or HOST:PORT, in lower case; None for anything else.

    >>> host_of("LOCALHOST:80"), host_of("[::1]:8080"), host_of("[::1]"), host_of("a:b"), host_of("::1")
    ('localhost', '::1', '::1', None, None)
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", text, re.ASCII)
    return None if match is None else match[1].removeprefix("[").removesuffix("]").lower()


def netloc_of(origin: str) -> str:
    """Return host and port of an Origin as it has them; "" for one that has none, such as `null`."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def is_address(host: str) -> bool:
    """Return whether a host is an address: no lookup of a name leads there.

    >>> is_address("192.0.2.7"), is_address("fe80::1"), is_address("evil.example"), is_address("1.2.3.4.evil.example")
    (True, True, False, False)
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_place(text: str, option: str) -> tuple[str, int]:
    """Return the host and the port of PORT or HOST:PORT. Raises UsageError, which names the option.

    >>> parse_place("0", "--web"), parse_place("0.0.0.0:8080", "--web"), parse_place("[::1]:8080", "--web")
    (('127.0.0.1', 0), ('0.0.0.0', 8080), ('::1', 8080))
    """
    host, colon, port = text.rpartition(":")
    is_bare = ":" in host and not host.startswith("[")  # an IPv6 address without brackets
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if is_bare or not is_port(port) or not may_be_host(host):
        raise UsageError(
            f"{option} {text}: must be PORT or HOST:PORT, such as 8080 or 127.0.0.1:8080; port 0 is any free one."
        )
    return host, int(port)


def checked_token(given: str | None) -> str:
    """Return the token that is given or, if none is, a new one. Raises UsageError if it is too short or has blanks."""
    if given is None:
        return secrets.token_urlsafe(TOKEN_BYTES)
    if not TOKEN.fullmatch(given):
        raise UsageError(
            "MEGAFLOW_WEB_TOKEN must have 16 to 256 letters, digits, '.', '_', '~' and '-'. "
            "Unset it to get a new random token at each start."
        )
    return given

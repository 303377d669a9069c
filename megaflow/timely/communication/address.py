"""Addresses as users write them: host and port. Nothing here opens a socket, so pure modules may use it."""

import ipaddress
from typing import Any

from megaflow.errors import UsageError

HIGHEST_PORT = 65535


def address_text(address: Any) -> str:
    """Return a socket address in its usual written form.

    >>> address_text(("127.0.0.1", 2101)), address_text(("::1", 2101, 0, 0))
    ('127.0.0.1:2101', '[::1]:2101')
    """
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`. Raises UsageError for any other text.

    >>> parse_address("localhost:2101"), parse_address("[::1]:80")
    (('localhost', 2101), ('::1', 80))
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not may_be_host(host) or not is_port(port):
        raise UsageError(f"{text!r} is not an address; write host:port, as in localhost:2101")
    return host.strip("[]"), int(port)


def may_be_host(text: str) -> bool:
    """Return whether a name can be looked up: no part of it is empty or too long.

    >>> may_be_host("localhost"), may_be_host("::1"), may_be_host("127.0..1"), may_be_host("")
    (True, True, False, False)
    """
    try:
        return text.encode("idna") != b""
    except UnicodeError:
        return False


def is_port(text: str) -> bool:
    """Return whether the text is a port number.

    >>> is_port("80"), is_port("65536"), is_port("x")
    (True, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= HIGHEST_PORT


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

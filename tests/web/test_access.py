"""Who may read and steer, as a value."""

from dataclasses import replace
from http import HTTPStatus

import pytest

from megaflow.errors import UsageError
from megaflow.web.access import HEADERS, Access, Visit, checked_token, netloc_of, parse_place

TOKEN = "0123456789abcdef"
LOCAL = Access("127.0.0.1", 8080, TOKEN, may_steer=True, machine="green")
OPEN = Access("0.0.0.0", 8080, TOKEN, may_steer=True, machine="Green")
HOST = "127.0.0.1:8080"
OWN = Visit("/", [HOST])
COMMAND = Visit("/control", [HOST], [f"http://{HOST}"], "same-origin", "cors", TOKEN, steers=True)


@pytest.mark.parametrize("host", [HOST, "localhost:9000", "LOCALHOST", "[::1]:8080", "127.0.0.1", "127.9.9.9:1"])
def test_a_local_page_answers_to_names_of_loopback(host: str) -> None:
    assert LOCAL.judge_reading(replace(OWN, hosts=[host])) is None


@pytest.mark.parametrize(
    "hosts",
    [
        [], [""], ["evil.example"], ["evil.example:8080"], ["127.0.0.1.evil.example"], ["localhost.evil.example"],
        ["192.0.2.1"], ["green"], [HOST, HOST], ["127.0.0.1:8080:1"], ["127.0.0.1@evil"], ["::1"], [" localhost"],
        ["localhost\t"], ["localhost/"], ["[::1"], ["xn--localhost"], ["localhost:123456"],
    ],
)  # fmt: skip
def test_a_local_page_refuses_other_hosts(hosts: list[str]) -> None:
    refused = LOCAL.judge_reading(replace(OWN, hosts=hosts))
    assert refused is not None and refused.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(("host", "is_own"), [("green:8080", True), ("192.0.2.1:8080", True), ("[fe80::1]", True),
                                              ("localhost", True), ("evil.example", False)])  # fmt: skip
def test_an_open_page_answers_to_addresses_and_the_machine(host: str, is_own: bool) -> None:
    visit = replace(OWN, hosts=[host], cookie=TOKEN)
    assert (OPEN.judge_reading(visit) is None) is is_own


@pytest.mark.parametrize("access", [LOCAL, OPEN])
@pytest.mark.parametrize("path", ["/", "/events", "/static/{name}", "/metrics", "/control", ""])
def test_only_a_page_beyond_loopback_needs_the_token_to_read(access: Access, path: str) -> None:
    refused = access.judge_reading(replace(OWN, path=path))
    assert (refused is None) is access.is_local
    assert refused is None or refused.status == HTTPStatus.UNAUTHORIZED
    assert access.judge_reading(replace(OWN, path=path, cookie=TOKEN)) is None


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_neither_token_nor_host(path: str) -> None:
    assert OPEN.judge_reading(Visit(path)) is None


@pytest.mark.parametrize(
    "origins",
    [
        ["http://evil.example"], ["null"], ["http://127.0.0.1:8081"], ["http://127.0.0.1"], ["file://"], [""],
        [f"http://{HOST}", f"http://{HOST}"], ["http://[broken"],
    ],
)  # fmt: skip
def test_a_foreign_origin_may_not_read(origins: list[str]) -> None:
    assert LOCAL.judge_reading(replace(OWN, path="/events", origins=origins)) is not None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_to_the_page_and_nothing_else(site: str) -> None:
    assert LOCAL.judge_reading(replace(OWN, site=site, mode="navigate")) is None
    assert LOCAL.judge_reading(replace(OWN, site=site, mode="no-cors")) is not None
    assert LOCAL.judge_reading(replace(OWN, path="/events", site=site, mode="navigate")) is not None


def test_the_page_s_own_command_may_steer() -> None:
    assert LOCAL.judge_steering(COMMAND) is None
    assert OPEN.judge_steering(COMMAND) is None


@pytest.mark.parametrize(
    "change",
    [{"cookie": ""}, {"cookie": TOKEN[:-1]}, {"cookie": TOKEN + "x"}, {"cookie": "\udcff"}, {"origins": []},
     {"origins": ["http://evil.example"]}, {"steers": False}, {"hosts": ["evil.example"]}, {"site": "cross-site"},
     {"site": "same-site"}, {"bearers": ["Bearer wrong"]}, {"bearers": [f"Basic {TOKEN}"]},
     {"bearers": [f"Bearer {TOKEN}"] * 2}],
)  # fmt: skip
def test_a_command_needs_token_origin_and_header(change: dict[str, object]) -> None:
    assert LOCAL.judge_steering(replace(COMMAND, **change)) is not None  # type: ignore[arg-type]


def test_a_page_without_control_never_steers() -> None:
    for visit in (COMMAND, replace(COMMAND, bearers=[f"Bearer {TOKEN}"])):
        assert replace(LOCAL, may_steer=False).judge_steering(visit) is not None


def test_a_program_with_the_token_needs_no_host_and_no_origin() -> None:
    program = Visit("/metrics", ["job.namespace.svc:9100"], bearers=[f"bearer {TOKEN}"])
    assert OPEN.judge_reading(program) is None
    assert OPEN.judge_steering(program) is None


def test_a_link_is_exchanged_only_with_its_token_and_for_this_machine() -> None:
    assert OPEN.judge_link(OWN, TOKEN) is None
    assert OPEN.judge_link(OWN, "wrong") is not None
    assert OPEN.judge_link(replace(OWN, hosts=["evil.example"]), TOKEN) is not None


def test_a_link_has_the_token_only_if_the_page_needs_it() -> None:
    assert replace(LOCAL, may_steer=False).link("127.0.0.1") == "http://127.0.0.1:8080/"
    assert LOCAL.link("127.0.0.1") == f"http://127.0.0.1:8080/?token={TOKEN}"
    assert replace(OPEN, may_steer=False).link("fe80::1") == f"http://[fe80::1]:8080/?token={TOKEN}"


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "65536", "1.5", "host:", ":8080", "host:x", "a..b:80", "::1:80", "app.py", "http://x:80"]
)
def test_an_address_that_is_none_is_a_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match=r"--web .*: must be PORT or HOST:PORT"):
        parse_place(text, "--web")


@pytest.mark.parametrize("text", ["", "short", "with blanks in it and long", "ümlaut-ümlaut-ümlaut", "a" * 257])
def test_a_token_of_the_user_is_long_and_plain(text: str) -> None:
    with pytest.raises(UsageError, match="MEGAFLOW_WEB_TOKEN"):
        checked_token(text)


def test_a_token_is_random_unless_it_is_given() -> None:
    assert checked_token(TOKEN) == TOKEN
    assert checked_token(None) != checked_token(None)


def test_the_policy_allows_nothing_from_other_hosts_and_no_script_in_html() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert policy.startswith("default-src 'none';")


def test_an_origin_is_compared_with_its_port() -> None:
    assert netloc_of("https://Green:8443") == "green:8443"
    assert [netloc_of(text) for text in ("null", "", "ftp://green", "//green")] == [""] * 4

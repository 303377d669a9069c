"""Both sides of the handshake, stepped by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.timely.communication.handshake import (
    NONCE_BYTES,
    VERSION,
    ClientHandshake,
    ServerHandshake,
    greeting,
    refusal,
    welcome,
)
from megaflow.timely.communication.wire import FrameDecoder, Kind

C, S = b"c" * NONCE_BYTES, b"s" * NONCE_BYTES


def message(frame: bytes) -> tuple[int, bytes]:
    [(kind, payload)] = FrameDecoder().feed(frame)
    return kind, bytes(payload)


def shake(client: ClientHandshake, server: ServerHandshake) -> None:
    to_server = client.start()
    while to_server:
        to_client = server.received(*message(to_server))
        if not to_client:
            to_client = welcome({"server": 1})
        to_server = client.received(*message(to_client))


def test_both_sides_learn_what_the_other_says() -> None:
    client, server = ClientHandshake(b"key", "control", {"a": [1]}, C), ServerHandshake(b"key", S)
    shake(client, server)
    assert (server.role, server.hello, client.answer) == ("control", {"a": [1]}, {"server": 1})


def test_a_client_with_another_secret_is_refused_and_sees_no_proof() -> None:
    client, server = ClientHandshake(b"guess", "control", {}, C), ServerHandshake(b"key", S)
    proof = client.received(*message(server.received(*message(client.start()))))
    with pytest.raises(ConfigMismatch, match="secrets differ"):
        server.received(*message(proof))
    assert server.role is None


def test_a_server_with_another_secret_learns_no_hello() -> None:
    client, server = ClientHandshake(b"key", "control", {}, C), ServerHandshake(b"key", S)
    impostor = ServerHandshake(b"guess", S)
    proof = client.received(*message(server.received(*message(client.start()))))
    assert proof
    with pytest.raises(ConfigMismatch, match="secrets differ"):
        impostor.received(*message(client.start()))
        impostor._stage, impostor._wanted = Kind.PROOF, (message(proof)[1], b"0" * 32)
        client.received(*message(impostor.received(*message(proof))))


def test_a_proof_cannot_be_reflected() -> None:
    client = ClientHandshake(b"key", "control", {}, C)
    proof = client.received(*message(greeting(C)))  # the server repeats the client's own nonce
    with pytest.raises(ConfigMismatch):
        client.received(*message(proof))  # and its own proof


def test_another_version_is_named() -> None:
    for side in (ServerHandshake(b"key", S), ClientHandshake(b"key", "control", {}, C)):
        with pytest.raises(ConfigMismatch, match=f"version {VERSION + 1} .* version {VERSION}"):
            side.received(*message(greeting(C, VERSION + 1)))


def test_a_refusal_reaches_the_client_at_any_stage() -> None:
    client, server = ClientHandshake(b"key", "control", {}, C), ServerHandshake(b"key", S)
    client.received(*message(server.received(*message(client.start()))))
    with pytest.raises(ConfigMismatch, match="because"):
        client.received(*message(refusal("because")))


def test_a_hello_is_not_taken_twice_nor_before_the_proof() -> None:
    client, server = ClientHandshake(b"key", "control", {}, C), ServerHandshake(b"key", S)
    hello = client._hello
    with pytest.raises(ProtocolError):
        server.received(*message(hello))
    shake(client, server)
    with pytest.raises(ProtocolError):
        server.received(*message(hello))


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=80)), max_size=5), st.integers(0, 3))
def test_hostile_messages_raise_and_never_authenticate(hostile: list[tuple[int, bytes]], honest: int) -> None:
    client, server = ClientHandshake(b"key", "control", {}, C), ServerHandshake(b"key", S)
    to_server = client.start()
    for _ in range(min(honest, 2)):
        to_server = client.received(*message(server.received(*message(to_server))))
    try:
        for kind, payload in hostile:
            server.received(kind, payload)
    except (ProtocolError, ConfigMismatch):
        pass
    assert server.role is None or honest >= 2

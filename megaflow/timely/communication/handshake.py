"""The handshake as a state machine of values: messages in, bytes out. No I/O, no randomness.

    client                                   server
    GREETING magic, version, nonce  ──▶
                                    ◀──      GREETING magic, version, nonce
    PROOF hmac(client, both nonces) ──▶
                                    ◀──      PROOF hmac(server, both nonces)
    HELLO role, dict                ──▶
                                    ◀──      WELCOME dict   or   REFUSED text

1. The server proves nothing until the client has proved itself. So a client without the secret gets nothing that would
   help it to guess the secret.
2. The two proofs differ by a label, so neither side can answer the other with the other's own proof.
3. REFUSED may come at any point and gives the reason. The connection is closed after it.
"""

import hashlib
import hmac
import struct
from typing import Any

from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.timely.communication.wire import MAX_FRAME_BYTES, Buffer, Kind, frames, pack_record, unpack_record

VERSION = 3
NONCE_BYTES = 32
MAX_UNPROVEN_BYTES = 512  # of each message before the proof

_MAGIC = b"megaflow"
_GREETING = struct.Struct(f"!8sH{NONCE_BYTES}s")


def greeting(nonce: bytes, version: int = VERSION) -> bytes:
    """Return the first frame that either side sends."""
    return frames(Kind.GREETING, _GREETING.pack(_MAGIC, version, nonce))[0]


def welcome(answer: dict[str, Any]) -> bytes:
    """Return the frame that accepts the connection and ends the handshake."""
    return frames(Kind.WELCOME, pack_record(answer))[0]


def refusal(reason: str) -> bytes:
    """Return the frame that refuses the connection and ends the handshake."""
    return frames(Kind.REFUSED, reason.encode()[:MAX_UNPROVEN_BYTES])[0]


def _read_greeting(kind: int, payload: Buffer) -> bytes:
    """Return the other side's nonce."""
    if kind != Kind.GREETING or len(payload) != _GREETING.size:
        raise ProtocolError("the first bytes are not a megaflow greeting")
    magic, version, nonce = _GREETING.unpack(payload)
    if magic != _MAGIC:
        raise ProtocolError("the first bytes are not a megaflow greeting")
    if version != VERSION:
        raise ConfigMismatch(
            f"the other side uses version {version} of the protocol, this side version {VERSION}: install the same "
            "megaflow on both"
        )
    assert isinstance(nonce, bytes)
    return nonce


def _proof(secret: bytes, label: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret, label + client_nonce + server_nonce, hashlib.sha256)


def _check_proof(kind: int, payload: Buffer, expected: bytes) -> None:
    if kind != Kind.PROOF:
        raise ProtocolError(f"a frame of kind {kind} where a proof was expected")
    if not hmac.compare_digest(bytes(payload), expected):
        raise ConfigMismatch("the secrets differ: give both processes the same MEGAFLOW_SECRET")


class ClientHandshake:
    """The connecting side. Complete when `answer` is not None."""

    def __init__(self, secret: bytes, role: str, hello: dict[str, Any], nonce: bytes) -> None:
        self._secret = secret
        self._hello = frames(Kind.HELLO, pack_record([role, hello]))[0]
        self._nonce = nonce
        self._stage = Kind.GREETING  # the message expected next
        self._expected = b""  # the server's proof
        self.max_message_bytes = MAX_UNPROVEN_BYTES  # of the next message; written here
        self.answer: dict[str, Any] | None = None

    def start(self) -> bytes:
        """Return the first bytes to send."""
        return greeting(self._nonce)

    def received(self, kind: int, payload: Buffer) -> bytes:
        """Process one message; return the bytes to send.

        Raises ConfigMismatch if the other side refuses or has another version or secret, ProtocolError for wrong bytes.
        """
        if kind == Kind.REFUSED:
            raise ConfigMismatch(bytes(payload).decode(errors="replace"))
        if self._stage == Kind.GREETING:
            nonce = _read_greeting(kind, payload)
            self._expected = _proof(self._secret, b"server", self._nonce, nonce)
            self._stage = Kind.PROOF
            return frames(Kind.PROOF, _proof(self._secret, b"client", self._nonce, nonce))[0]
        if self._stage == Kind.PROOF:
            _check_proof(kind, payload, self._expected)
            self._stage, self.max_message_bytes = Kind.WELCOME, MAX_FRAME_BYTES
            return self._hello
        answer = unpack_record(payload) if kind == Kind.WELCOME and self.answer is None else None
        if not isinstance(answer, dict):
            raise ProtocolError(f"a frame of kind {kind} where a welcome was expected")
        self.answer = answer
        return b""


class ServerHandshake:
    """The accepting side. Complete when `role` is not None; then it answers `welcome` or `refusal`."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._nonce = nonce
        self._stage = Kind.GREETING  # the message expected next
        self._wanted = (b"", b"")  # the client's proof, and the server's in return
        self.max_message_bytes = MAX_UNPROVEN_BYTES  # of the next message; written here
        self.is_proven = False  # the client knows the secret
        self.role: str | None = None
        self.hello: dict[str, Any] = {}

    def received(self, kind: int, payload: Buffer) -> bytes:
        """Process one message; return the bytes to send.

        Raises ConfigMismatch if the other side has another version or secret, ProtocolError for wrong bytes.
        """
        if self._stage == Kind.GREETING:
            nonce = _read_greeting(kind, payload)
            self._wanted = (
                _proof(self._secret, b"client", nonce, self._nonce),
                _proof(self._secret, b"server", nonce, self._nonce),
            )
            self._stage = Kind.PROOF
            return greeting(self._nonce)
        if self._stage == Kind.PROOF:
            _check_proof(kind, payload, self._wanted[0])
            self._stage, self.max_message_bytes, self.is_proven = Kind.HELLO, MAX_FRAME_BYTES, True
            return frames(Kind.PROOF, self._wanted[1])[0]
        if kind != Kind.HELLO or self.role is not None:
            raise ProtocolError(f"a frame of kind {kind} where a hello was expected")
        match unpack_record(payload):
            case [str() as role, dict() as hello]:
                self.role, self.hello = role, hello
                return b""
        raise ProtocolError("a hello of another shape")

"""CURVE on the ZMQ event plane: encrypted, and only for processes that know the plane's token.

All processes derive one key pair from the token and use it at both ends. The public key never crosses the wire, and
publishers accept no other: without the token the handshake fails in either direction.
"""

from __future__ import annotations

import hashlib
import hmac

import zmq
from msgspec import Struct
from zmq.utils import z85

from dynamo.runtime.events.base import EventPlaneError

ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a client may connect (ZeroMQ RFC 27)."""
_ZAP_FRAMES = 7


class CurveKeys(Struct, frozen=True):
    """Z85 text, as libzmq takes it."""

    public: bytes
    secret: bytes

    @classmethod
    def derive(cls, token: str) -> CurveKeys:
        if not zmq.has("curve"):
            raise EventPlaneError(
                "DYN_PLANE_TOKEN is set, but this libzmq was built without CURVE; install pyzmq from PyPI, "
                "or set DYN_EVENT_PLANE=nats"
            )
        # Not iterated like a password's digest: a token is random, and the handshakes need none of its bits guessed.
        secret = z85.encode(hmac.digest(token.encode(), b"dynamo event plane", hashlib.sha256))
        return cls(zmq.curve_public(secret), secret)

    def protect_server(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_server = True
        socket.curve_secretkey = self.secret

    def protect_client(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_serverkey = self.public
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret

    def answer(self, question: list[bytes]) -> list[bytes]:
        """Answer libzmq's question whether the client has our key."""
        request = question[1] if len(question) > 1 else b""
        accepted = (
            len(question) == _ZAP_FRAMES
            and question[5] == b"CURVE"
            and hmac.compare_digest(question[6], z85.decode(self.public))
        )
        return [b"1.0", request, *((b"200", b"OK") if accepted else (b"400", b"unknown key")), b"", b""]

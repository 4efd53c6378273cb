"""How both ends of a connection prove that they know the plane's token, without sending it.

    client → worker   HELLO with a nonce
    worker → client   HELLO with a nonce of its own
    client → worker   PROOF: HMAC of both nonces under the token
    worker → client   PROOF: the same, for its own side

A recorded exchange is worthless on another connection, whose nonces differ. The client proves first: a stranger who
only connects gets nothing that depends on the token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Literal

Side = Literal["client", "worker"]

NONCE_BYTES = 32


def nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def proof(token: str, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    message = b"dynamo request plane\0" + side.encode() + b"\0" + client_nonce + worker_nonce
    return hmac.digest(token.encode(), message, hashlib.sha256)


def is_proof(sent: bytes, token: str, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bool:
    return hmac.compare_digest(sent, proof(token, side, client_nonce, worker_nonce))

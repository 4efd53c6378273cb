"""The state of a prefix as bytes: what one engine computed, another one of the same model can go on from."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dynamo.engines.llamacpp.blocks import BlockMap, Held
from dynamo.engines.llamacpp.decoder import LlamaDecoder
from dynamo.kv.block_names import BlockNames, prompt_digest
from dynamo.protocols.errors import InvalidArgument, ResourceExhausted

_FORMAT = "dynamo-llamacpp-2"


class PrefixState(Struct, frozen=True, array_like=True):
    format: str
    model: str
    block_size: int
    tokens: int
    digest: bytes
    """The digest of the salt and of the tokens, so that a state is never used for others."""
    data: bytes


class SequenceStates:
    """Called in the engine's thread, between two steps."""

    def __init__(self, decoder: LlamaDecoder, blocks: BlockMap, names: BlockNames) -> None:
        self._decoder = decoder
        self._blocks = blocks
        self._names = names

    def export(self, tokens: list[int], cache_salt: str | None) -> bytes | None:
        size = self._blocks.block_size
        hashes = self._names.of(tokens, cache_salt)
        held = self._blocks.begin(hashes, self._blocks.lookup(hashes) * size) if self._decoder.rewinds else None
        if held is None:
            return None
        try:
            digest = prompt_digest(tokens[: len(held.blocks) * size], cache_salt)
            return self.encode(held, digest) if held.blocks else None
        finally:
            self._blocks.end(held)

    def encode(self, held: Held, digest: bytes) -> bytes:
        """The state of a sequence of full blocks; `digest` is that of its prompt."""
        data = self._decoder.state(held.number)
        size = self._blocks.block_size
        prefix = PrefixState(_FORMAT, self._decoder.description, size, len(held.blocks) * size, digest, data)
        return msgspec.msgpack.encode(prefix)

    def restore(self, tokens: list[int], state: bytes, cache_salt: str | None) -> int:
        if not self._decoder.rewinds:
            raise InvalidArgument("this model keeps no prefixes")
        prefix = self._checked(state)
        cells = prefix.tokens
        count, rest = divmod(cells, self._blocks.block_size)
        if rest or not 0 < cells <= len(tokens) or prefix.digest != prompt_digest(tokens[:cells], cache_salt):
            raise InvalidArgument("the state is of other tokens")
        hashes = self._names.of(tokens[:cells], cache_salt)
        if self._blocks.lookup(hashes) == count:
            return cells
        held = self._blocks.begin((), cells)
        if held is None:
            raise ResourceExhausted("the KV cache has no room for this state")
        try:
            if not self._decoder.restore(held.number, prefix.data) or self._decoder.length(held.number) != cells:
                raise InvalidArgument("llama.cpp cannot read the state")
            self._blocks.grow(held, cells, hashes, None)
        except BaseException:
            self._decoder.truncate(held.number, 0)
            raise
        finally:
            self._blocks.end(held)
        return cells

    def _checked(self, state: bytes) -> PrefixState:
        try:
            prefix = msgspec.msgpack.decode(state, type=PrefixState)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"not the state of a prefix: {error}") from None
        ours = (_FORMAT, self._decoder.description, self._blocks.block_size)
        theirs = (prefix.format, prefix.model, prefix.block_size)
        if ours != theirs:
            raise InvalidArgument(f"the state is of {theirs}, not of {ours}")
        return prefix

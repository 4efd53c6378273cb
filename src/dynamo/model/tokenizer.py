"""Encodes text as token ids, with fastokens if it agrees with Hugging Face tokenizers, else with the latter.

Where a GGUF file is cut in a way that only llama.cpp knows, llama.cpp encodes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import fastokens
import msgspec
import tokenizers

from dynamo.model.detokenize import ByteDecoder, ByteTables, Decoder, StreamDecoder, byte_pieces
from dynamo.model.encoding_pool import EncodingPool
from dynamo.model.files import read_text
from dynamo.model.gguf.llama_cpp import LlamaVocabulary
from dynamo.model.token_width import characters_per_token
from dynamo.protocols.errors import ModelError

log = logging.getLogger(__name__)

# Texts with more characters are encoded in a thread: they would block the event loop longer than the hop costs.
_LONG_FOR_LLAMA = 512
_LONG_FOR_FASTOKENS = 64 * 1024
_LONG_FOR_HF = 2 * 1024

# In a user's text the name of a byte token, such as <0x0A>, is plain text, but fastokens may read it as the byte.
_BYTE_NAME = "<0x"
_BYTE_NAMES_PROBE = "a<0x0A>b <0x41><0xE2>"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PROBES = (
    "",
    " ",
    "Hello, world! It's 2026; don't you'll we've I'D THEY'RE.",
    "  two  spaces\n\n\nthree newlines\t\ttabs \r\n   \n trailing   ",
    "1234567890 3.14159 -42 1,000,000 0x1F 10e-5 ²³ ½ Ⅷ",
    'def f(x: int) -> dict[str, int]:\n    return {"a_b": x ** 2}  # café\n\n\n    if (x!=y) {foo();}//...---===',
    "Größe, naïve façade, Ελληνικά, Русский язык, עברית, العربية, हिन्दी, ไทย, 한국어, 日本語のテスト, 你好，世界。",
    "👋🏽 👩‍👩‍👧‍👦 🇫🇷 e\u0301 ﬁ Å Å \u200b\u00a0\u3000 \ufeff \u2028",
    '<s></s> <|im_start|>user\nhi<|im_end|><|endoftext|> <tool_call>{"name": "f"}</tool_call> [INST] ▁',
    "supercalifragilisticexpialidocious antidisestablishmentarianism xxxxxxxxxxxxxxxxxxxxxxxxxx aAaAaA HTTPServer",
    "\x01\x07\x1b[0m\x7f\ufffd",
)


class Tokenizer:
    """One model's tokenizer. Truncation and padding settings of tokenizer.json are ignored: prompts are never cut."""

    def __init__(self, json: str, padded_size: int = 0, vocabulary: LlamaVocabulary | None = None) -> None:
        """`padded_size`: the size of the model's vocabulary, which may exceed that of its tokenizer.

        `vocabulary` encodes in place of what `json` says; tokens and decoding are those of `json`.
        """
        try:
            self._hf = tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the library raises nothing more specific
            raise ModelError(f"cannot load the tokenizer: {error}") from error
        self._hf.no_truncation()
        self._hf.no_padding()
        added = self._hf.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.vocab_size: int = self._hf.get_vocab_size(with_added_tokens=True)
        self._vocabulary = vocabulary
        self._fast = self._proven_fastokens(json) if vocabulary is None else None
        self._byte_names_agree = self._fast is not None and self._same(self._fast, _BYTE_NAMES_PROBE)
        tokens = {id: token for token, id in self._hf.get_vocab(with_added_tokens=False).items()}
        tokens |= {id: token.content for id, token in added.items()}
        self._tokens = tokens
        self.id_limit = max(padded_size, self.vocab_size, max(tokens, default=-1) + 1)
        self._tables = self._proven_tables(json)
        self.characters_per_token = characters_per_token(json, set(tokens.values()))
        self._long = _LONG_FOR_HF if self._fast is None else _LONG_FOR_FASTOKENS
        if vocabulary is not None:
            self._long = _LONG_FOR_LLAMA
        self._pool = EncodingPool()

    @classmethod
    def from_file(cls, path: Path, padded_size: int = 0) -> Tokenizer:
        try:
            return cls(read_text(path), padded_size)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error

    @property
    def backend(self) -> str:
        if self._vocabulary is not None:
            return "llama.cpp"
        return "tokenizers" if self._fast is None else "fastokens"

    @property
    def is_byte_level(self) -> bool:
        """Whether tokens are written in GPT-2's byte characters, rather than as text with `▁` for a space."""
        return self._tables is not None

    @property
    def tokens(self) -> Mapping[int, str]:
        """The tokens by id, as the vocabulary writes them."""
        return self._tokens

    def to_json(self) -> str:
        """The tokenizer as the content of a tokenizer.json."""
        return self._hf.to_str()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """NUL characters are dropped and lone surrogates become U+FFFD: no model was trained on either."""
        if "\0" in text:
            text = text.replace("\0", "")
        try:
            return self._encode(text, add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            return self._encode(_without_surrogates(text), add_special_tokens)

    async def encode_async(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """As `encode`, but long text is encoded in a thread, where the libraries release the GIL."""
        if len(text) <= self._long:
            return self.encode(text, add_special_tokens)
        return await self._pool.run(lambda: self.encode(text, add_special_tokens))

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, without encoding it; 0 where none is known."""
        if self.characters_per_token is None:
            return 0
        characters = len(text) - (text.count("\0") if "\0" in text else 0)  # these are dropped
        if _has_surrogates(text):
            # Two of them may become one character.
            characters = len(_without_surrogates(text.replace("\0", "")))
        return -(-characters // self.characters_per_token)

    def exceeds(self, text: str, tokens: int) -> bool:
        """Whether the text is known to have more tokens, without encoding it."""
        return (
            self.characters_per_token is not None
            and len(text) > tokens * self.characters_per_token
            and self.fewest_tokens(text) > tokens
        )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        known = [id for id in ids if id in self._tokens]
        return self._hf.decode(known, skip_special_tokens=skip_special_tokens)

    def decoder(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> Decoder:
        if self._tables is not None:
            return ByteDecoder(self._tables[skip_special_tokens])
        return StreamDecoder(self._hf, prompt_ids, skip_special_tokens, self.special_ids, self.id_limit)

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token adds in the middle of a text; empty for an id outside the vocabulary."""
        if self._tables is not None:
            return self._tables[False].pieces.get(id, b"")
        token = self._tokens.get(id, "")
        if id not in self.special_ids and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return token.replace("▁", " ").encode()

    def id_of(self, token: str) -> int | None:
        return self._hf.token_to_id(token)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._vocabulary is not None:
            return self._vocabulary.encode(text, add_special_tokens)
        if self._fast is not None and (self._byte_names_agree or _BYTE_NAME not in text):
            ids: list[int] = self._fast.encode(text, add_special_tokens).ids
            return ids
        return self._hf_encode(text, add_special_tokens)

    def _hf_encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Unlike `encode`, the batch call releases the GIL and skips the offsets.
        return self._hf.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _proven_fastokens(self, json: str) -> fastokens.Tokenizer | None:
        try:
            fast = fastokens.Tokenizer.from_json_str(json)
            fast.no_truncation()
            fast.no_padding()
            added = [token.content for token in self._hf.get_added_tokens_decoder().values()][:64]
            inline = " ".join(f"a{token}b {token} {token}\n" for token in added)
            for probe in (*_PROBES, inline, "\n".join(_PROBES) * 8, "".join(_PROBES)):
                if not self._same(fast, probe):
                    log.info("encoding with tokenizers: fastokens gives other ids for %r", probe[:60])
                    return None
        except Exception as error:  # for a tokenizer it cannot load, it raises one of several types
            log.info("encoding with tokenizers: fastokens cannot load this one: %s", error)
            return None
        return fast

    def _same(self, fast: fastokens.Tokenizer, text: str) -> bool:
        return all(fast.encode(text, special).ids == self._hf_encode(text, special) for special in (False, True))

    def _proven_tables(self, json: str) -> dict[bool, ByteTables] | None:
        if not _is_byte_level(json):
            return None
        whole = ByteTables.build(byte_pieces(self._tokens), self.id_limit)
        if self._hf.decode(list(whole.pieces), skip_special_tokens=False) != _joined(whole):
            return None
        return {False: whole, True: whole.without(self.special_ids)}


class _DecoderOnly(msgspec.Struct):
    class DecoderKind(msgspec.Struct):
        type: str | None = None
        decoders: list[_DecoderOnly.DecoderKind] = []

    decoder: DecoderKind | None = None


# Made here and not on first use: msgspec crashes when two threads, each loading a model, prepare one type at once.
_DECODER_ONLY = msgspec.json.Decoder(_DecoderOnly)


def _is_byte_level(json: str) -> bool:
    decoder = _DECODER_ONLY.decode(json).decoder
    while decoder is not None and decoder.type == "Sequence" and len(decoder.decoders) == 1:
        decoder = decoder.decoders[0]
    return decoder is not None and decoder.type == "ByteLevel"


def _joined(tables: ByteTables) -> str:
    return b"".join(tables.pieces.values()).decode(errors="replace")


def _has_surrogates(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""GGUF files that are cut in ways which only llama.cpp knows are tokenized by llama.cpp, like its server."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dynamo.model import ModelError
from dynamo.model.gguf import llama_cpp, read_gguf
from dynamo.model.gguf import tokenizer as gguf_tokenizer
from dynamo.model.gguf.llama_cpp import LlamaVocabulary
from dynamo.model.tokenizer import Tokenizer
from support.gguf_writer import byte_level_metadata, write_gguf
from support.tiny_llama import tiny_llama_gguf

NAMES = ("llama4", "gpt-4o", "kimi-k2", "tekken", "deepseek-v3", "glm4", "bloom", "default")
OURS = ("gpt-2", "olmo", "llama-bpe", "dbrx", "falcon3", "smollm", "starcoder", "refact", "command-r")
TEXTS = (
    "",
    "Hello, world! It's 12345 or 3.14, don't you'll THEY'RE.",
    "  two  spaces\n\n\nlines\t\ttabs \r\n   \n trailing   ",
    'def f(x: int) -> dict[str, int]:\n    return {"a_b": x ** 2}  # café/\n//',
    "Größe, Русский, עברית, हिन्दी, 한국어, 日本語, 你好。 👋🏽 🇫🇷 e\u0301 HTTPServer aAaA",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <tool_call>",
)

SERVERS = """
import sys, xllamacpp
servers = []
for path in sys.argv[1:]:
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.n_ctx = path, 0, 256
    servers.append(xllamacpp.Server(params))
    print(servers[-1].listening_address, flush=True)
sys.stdin.read()
"""
"""llama-server for each file, in a process of its own: it takes the library's log over."""


def loaded(tmp_path: Path, pre: str, **more: object) -> Tokenizer:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(pre) | more)
    return gguf_tokenizer.load_tokenizer(path, read_gguf(path))


def test_such_a_file_has_the_ids_of_llama_server(tmp_path: Path) -> None:
    paths = [tiny_llama_gguf(tmp_path / f"{name}.gguf", **{"tokenizer.ggml.pre": name}) for name in NAMES]
    servers = subprocess.Popen(
        [sys.executable, "-c", SERVERS, *map(str, paths)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with servers:
        assert servers.stdin
        assert servers.stdout
        for path in paths:
            address = servers.stdout.readline().strip()
            tokenizer = gguf_tokenizer.load_tokenizer(path, read_gguf(path))
            assert tokenizer.backend == "llama.cpp"
            for text in TEXTS:
                body = json.dumps({"content": text, "parse_special": True}).encode()
                with urllib.request.urlopen(f"{address}/tokenize", data=body) as response:
                    assert tokenizer.encode(text) == json.load(response)["tokens"], (path.name, text)
                assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
        servers.stdin.close()


@pytest.mark.parametrize("name", OURS)
def test_what_we_cut_ourselves_is_cut_as_by_llama_cpp(name: str, tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, name)
    vocabulary = LlamaVocabulary(tmp_path / "m.gguf", read_gguf(tmp_path / "m.gguf"))
    assert tokenizer.backend != "llama.cpp"
    assert [tokenizer.encode(text) for text in TEXTS] == [vocabulary.encode(text) for text in TEXTS]


def test_tokens_that_begin_and_end_a_text_are_added_if_the_file_says_so(tmp_path: Path) -> None:
    marks = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    marked = loaded(tmp_path, "tekken", **marks)
    assert marked.encode("fox", True) == [0, *marked.encode("fox"), 2]
    assert marked.encode("", True) == [0, 2]
    long = "a fox and a dog " * 1000
    assert marked.encode(long, True) == [0, *marked.encode(long), 2]


@pytest.mark.parametrize("text", ["a", " ", "!", "你", "1", "\n", "aA"])
def test_a_text_without_any_words_does_not_end_the_process(text: str, tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, "gpt-4o")
    assert tokenizer.decode(tokenizer.encode(text * 60_000)) == text * 60_000


def test_a_long_text_is_tokenized_as_its_parts(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, "tekken")
    line = "The quick brown fox, aged 12345, doesn't jump!\n\n  Größe 你好 <|im_end|>"
    ids = tokenizer.encode(line)
    assert tokenizer.encode(line * 1000) == ids * 1000


def test_a_long_text_is_not_cut_within_a_special_token(tmp_path: Path) -> None:
    metadata = byte_level_metadata("tekken")
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|end of all|>"]
    kinds = [*metadata["tokenizer.ggml.token_type"], 3]
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    tokenizer = loaded(tmp_path, "tekken", **more)
    for pad in range(20):
        ids = tokenizer.encode("x" * pad + "<|end of all|>" * 600)
        assert ids.count(len(tokens) - 1) == 600


def test_a_name_that_llama_cpp_does_not_know_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown pre-tokenizer type: 'martian'.*--model-config"):
        loaded(tmp_path, "martian")


def test_without_llama_cpp_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "PACKAGE", "no_such_package")
    llama_cpp._library.cache_clear()
    try:
        with pytest.raises(ModelError, match=r"'tekken' is known to llama.cpp alone.*pip install.*--model-config"):
            loaded(tmp_path, "tekken")
    finally:
        llama_cpp._library.cache_clear()

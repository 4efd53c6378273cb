"""Tiny models made on the fly: folders as Hugging Face lays them out, without weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} "
    "[/INST]{% elif message['role'] == 'assistant' %} {{ message['content'] }} {{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
_CORPUS = [
    "the quick brown fox jumps over the lazy dog and runs to the river",
    "hello world, what is the capital of France? It is Paris.",
    "numbers 1 2 3 42 100 2026 and code: def main(): return {'a': 1}",
    "system user assistant tool",
    "Grüße aus Köln, déjà vu, 你好世界, こんにちは, привет мир, 🎉 🚀",
]


@cache
def byte_level_json() -> str:
    """A byte-level BPE vocabulary with ChatML's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer.to_str()


@cache
def sentencepiece_json() -> str:
    """Llama 2's scheme: BPE over `▁`-marked words, bytes as `<0x0A>` where a character is unknown."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(_CORPUS[:4] * 4, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    words = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: id for id, token in enumerate(vocab)},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()


@cache
def metaspace_json() -> str:
    """T5's scheme: Unigram pieces cut at spaces that are kept as `▁`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer.to_str()


def byte_level_model(folder: Path, **config: Any) -> Path:
    """A ChatML model folder; keyword arguments are added to config.json."""
    ids = {token["content"]: token["id"] for token in json.loads(byte_level_json())["added_tokens"]}
    eos = ids["<|im_end|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(byte_level_json())
    write(
        folder / "config.json", {"model_type": "llama", "max_position_embeddings": 2048, "eos_token_id": eos} | config
    )
    write(folder / "generation_config.json", {"eos_token_id": eos, "do_sample": True, "temperature": 0.7, "top_p": 0.9})
    write(
        folder / "tokenizer_config.json",
        {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHATML, "model_max_length": 2048},
    )
    return folder


def sentencepiece_model(folder: Path) -> Path:
    """A Llama 2 like model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(sentencepiece_json())
    write(folder / "config.json", {"model_type": "llama", "max_position_embeddings": 4096, "eos_token_id": 2})
    write(
        folder / "tokenizer_config.json",
        {
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": {"content": "</s>", "special": True},
            "unk_token": "<unk>",
            "chat_template": LLAMA2,
        },
    )
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))

"""Prompts of an exact number of tokens: random words, and a model whose tokenizer has each word as one token."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MODEL = "words"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def vocabulary(size: int = 12_000) -> list[str]:
    """Enough words that, as in real vocabularies, fewer than one token in a hundred is part of a character."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    draw = random.Random(11)
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(draw.choices(syllables, k=draw.choice((2, 3))))] = None
    return list(words)


class Prompts:
    """Generates different prompts; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = vocabulary()

    def next(self, tokens: int) -> str:
        return " ".join(self._random.choices(self._words, k=tokens))


def make_model(folder: Path, **config: object) -> Path:
    """A byte-level BPE model in Hugging Face layout, without weights; both builds under test can load it.

    Keyword arguments are added to config.json.
    """
    words = vocabulary()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=_SPECIAL,
    )
    roles = [f"{role}\n" for role in ("system", "user", "assistant")]
    tokenizer.train_from_iterator([*(f" {word} {word}" for word in words), *roles, *roles], trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, start = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    for name, content in {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "chat_template": _TEMPLATE,
            "model_max_length": 32768,
            "clean_up_tokenization_spaces": False,
        },
        "special_tokens_map.json": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": 32768,
            "torch_dtype": "float32",
            "bos_token_id": start,
            "eos_token_id": end,
            **config,
        },
        "generation_config.json": {"bos_token_id": start, "eos_token_id": end},
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder

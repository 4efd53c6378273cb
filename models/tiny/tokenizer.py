"""Train the byte-level BPE on the project's own conversations and write the tokenizer files."""

import json
import re
import sys
from pathlib import Path
from random import Random

from chat import END, MARKS, PAD, SPECIAL, TEMPLATE, pieces
from data import conversation
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
CONTEXT = 2048
CONVERSATIONS = 60_000


def train(seed: int = 7) -> Tokenizer:
    rng = Random(seed)
    tokenizer = Tokenizer(models.BPE())
    # GPT-2's own splitting: llama.cpp knows it by that name, so the GGUF splits text the same way.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_text(rng) for _ in range(CONVERSATIONS)), trainer)
    # The trainer marks all of them as special; only the three that frame turns must be skipped in decoding.
    raw = json.loads(tokenizer.to_str())
    for token in raw["added_tokens"]:
        token["special"] = token["content"] in SPECIAL
    return Tokenizer.from_str(json.dumps(raw))


def _text(rng: Random) -> str:
    dialogue = conversation(rng)
    text = "".join(text for text, _ in pieces(dialogue.messages, dialogue.tools, dialogue.thinking))
    # No digit is ever merged: sums are learnt digit by digit.
    return re.sub(r"<[^<>\s]{1,20}>|\d", " ", text)


def write(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(number): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": TEMPLATE,
    }
    _save(folder / "tokenizer_config.json", settings)
    _save(folder / "special_tokens_map.json", {"eos_token": END, "pad_token": PAD})


def _save(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "src/dynamo/model/tiny")
    tokenizer = train()
    write(tokenizer, folder)
    print(f"{tokenizer.get_vocab_size()} entries in {folder}")


if __name__ == "__main__":
    main()

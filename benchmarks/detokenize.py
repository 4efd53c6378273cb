"""CPU time per token of incremental detokenisation, and how long a tokenizer takes to load.

usage: python benchmarks/detokenize.py [TOKENIZER_JSON]      (default: a byte-level vocabulary of 32k made here)
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from dynamo.model import Tokenizer
from dynamo.model.detokenize import StreamDecoder

REPEATS = 5
ROUNDS = 20


def made_up_vocabulary() -> str:
    """Words of random syllables: enough variety to fill 32k entries without a corpus."""
    rng = random.Random(1)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "on")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(60_000)]
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, show_progress=False, initial_alphabet=alphabet, special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator((" ".join(words[at : at + 50]) for at in range(0, len(words), 50)), trainer)
    return tokenizer.to_str()


def cost(run: Callable[[], object], tokens: int) -> str:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(ROUNDS):
            run()
        times.append((time.process_time() - start) / (tokens * ROUNDS) * 1e6)
    times.sort()
    return f"{times[0]:.3f} / {times[REPEATS // 2]:.3f} us per token (min / median)"


def main() -> None:
    json = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else made_up_vocabulary()
    start = time.perf_counter()
    tokenizer = Tokenizer(json)
    print(f"load: {(time.perf_counter() - start) * 1e3:.0f} ms, {tokenizer.vocab_size} ids, {tokenizer.backend}")
    reference = HfTokenizer.from_str(json)
    rng = random.Random(2)
    # Ids come from a decoded frame just before they are used, so the sample is small enough to stay in the caches.
    plain = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.special_ids and _whole(tokenizer, id)]
    samples = {
        "plain text": rng.choices(plain, weights=[1 / (rank + 10) for rank in range(len(plain))], k=4_000),
        "every character split over tokens": tokenizer.encode("🤖你好ñ" * 400),
    }
    calls = [[0]] * 4_000
    print(f"an empty call, to compare: {cost(partial(_all, _nothing, calls), len(calls))}")
    for name, ids in samples.items():
        singles = [[id] for id in ids]
        bursts = [ids[at : at + 8] for at in range(0, len(ids), 8)]
        print(name)
        for label, groups in (("one at a time", singles), ("eight at a time", bursts)):
            push, push_escaped = tokenizer.decoder().push, tokenizer.decoder().push_escaped
            print(f"  push, {label}: {cost(partial(_all, push, groups), len(ids))}")
            print(f"  push_escaped, {label}: {cost(partial(_all, push_escaped, groups), len(ids))}")
        stream = StreamDecoder(reference, [], True, tokenizer.special_ids).push
        print(f"  DecodeStream, one at a time: {cost(partial(_all, stream, singles), len(singles))}")


def _all(push: Callable[[list[int]], object], groups: list[list[int]]) -> list[object]:
    return [push(ids) for ids in groups]


def _nothing(ids: list[int]) -> str:
    return ""


def _whole(tokenizer: Tokenizer, id: int) -> bool:
    try:
        tokenizer.token_bytes(id).decode()
    except UnicodeDecodeError:
        return False
    return True


if __name__ == "__main__":
    main()

"""Trains the model on conversations that background processes generate."""

import argparse
import json
import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from chat import pieces, prompt
from data import Dialogue, Item, conversation, exam
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from model import Llama, Shape, greedy

LENGTHS = (64, 128, 256, 512, 1024, 2048)
CONVERSATIONS = 4000
Batch = tuple[np.ndarray, np.ndarray]


class Writer:
    """Runs in a worker process: generates conversations and batches those of similar length."""

    def __init__(self, tokenizer: str, tokens: int, marked: float, about: str) -> None:
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.tokens = tokens
        self.marked = marked
        self.about = about
        self.waiting: dict[int, list[tuple[list[int], list[bool]]]] = defaultdict(list)

    def _conversation(self, rng: Random) -> Dialogue:
        wanted = rng.random() < self.marked
        dialogue = conversation(rng)
        while wanted and not (dialogue.tools or dialogue.thinking):
            dialogue = conversation(rng)
        if self.about and rng.random() < 0.25:
            while not any(self.about in str(message) for message in dialogue.messages):
                dialogue = conversation(rng)
        return dialogue

    def batches(self, seed: int) -> list[Batch]:
        """The batches that became full: token ids, and which of them are trained on."""
        rng = Random(seed)
        texts, learnt, owners = [], [], []
        for number in range(CONVERSATIONS):
            dialogue = self._conversation(rng)
            separators = (", ", ": ") if rng.random() < 0.7 else (",", ":")
            for text, learn in pieces(
                dialogue.messages, dialogue.tools, dialogue.thinking, dialogue.learn_from, separators
            ):
                texts.append(text)
                learnt.append(learn)
                owners.append(number)
        rows: list[tuple[list[int], list[bool]]] = [([], []) for _ in range(CONVERSATIONS)]
        for encoded, learn, owner in zip(self.tokenizer.encode_batch_fast(texts), learnt, owners, strict=True):
            rows[owner][0].extend(encoded.ids)
            rows[owner][1].extend([learn] * len(encoded.ids))
        full = []
        for row in rows:
            size = next((size for size in LENGTHS if len(row[0]) <= size + 1), 0)
            if size:
                self.waiting[size].append(row)
            if size and len(self.waiting[size]) * size >= self.tokens:
                full.append(_padded(self.waiting.pop(size), size))
        return full


def _padded(rows: list[tuple[list[int], list[bool]]], size: int) -> Batch:
    ids = np.zeros((len(rows), size + 1), np.int16)
    learn = np.zeros((len(rows), size + 1), bool)
    for number, (tokens, mask) in enumerate(rows):
        ids[number, : len(tokens)] = tokens
        learn[number, : len(tokens)] = mask
    return ids, learn[:, 1:]


_writer: Writer | None = None


def _start_writer(tokenizer: str, tokens: int, marked: float, about: str) -> None:
    global _writer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _writer = Writer(tokenizer, tokens, marked, about)


def _write(seed: int) -> list[Batch]:
    assert _writer is not None
    return _writer.batches(seed)


def generated(pool: Pool, seeds: range, ahead: int) -> Iterator[Batch]:
    """Batches as the workers generate them, with at most `ahead` seeds in progress."""
    pending = deque(pool.apply_async(_write, (seed,)) for seed in seeds[:ahead])
    for seed in seeds[ahead:]:
        yield from pending.popleft().get()
        pending.append(pool.apply_async(_write, (seed,)))


def rate(step: int, steps: int, highest: float) -> float:
    warm = min(1.0, (step + 1) / min(200, steps / 10))
    return highest * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def examine(model: Llama, tokenizer: Tokenizer, items: list[Item]) -> list[tuple[Item, str]]:
    """The items with the model's answers."""
    prompts = [tokenizer.encode(prompt(item.messages, item.tools, item.thinking)).ids for item in items]
    said = greedy(model, prompts, tokenizer.token_to_id("<|im_end|>"))
    return [(item, tokenizer.decode(ids, skip_special_tokens=True)) for item, ids in zip(items, said, strict=True)]


def report(answered: list[tuple[Item, str]]) -> list[dict[str, object]]:
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    wrong: list[dict[str, object]] = []
    for item, said in answered:
        asked[item.topic] += 1
        if said in item.answers:
            right[item.topic] += 1
        else:
            wrong.append(
                {"topic": item.topic, "held": item.held, "asked": item.messages, "said": said, "right": item.answers}
            )
    print(
        f"{right.total()} of {asked.total()}: " + ", ".join(f"{t} {right[t]}/{n}" for t, n in asked.items()), flush=True
    )
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("src/dynamo/model/tiny/tokenizer.json"))
    parser.add_argument("--steps", type=int, default=16000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="shorten the schedule to end by then")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens per step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--start", type=Path, help="a checkpoint to continue from")
    parser.add_argument("--marked", type=float, default=0.0, help="at least this share with tools or thinking")
    parser.add_argument("--about", default="", help="a quarter contains this text, which has changed")
    parser.add_argument("--exam", type=int, default=100, help="examination questions of each topic at the end")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = Llama(Shape()).to(device)
    if options.start:
        model.load_state_dict({name: weight.float() for name, weight in load_file(str(options.start)).items()})
    print(sum(weight.numel() for weight in model.parameters()), "parameters", flush=True)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    plain = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=device == "cuda",
    )
    mixed = torch.autocast(device, torch.bfloat16)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))

    with get_context("spawn").Pool(
        options.workers, _start_writer, (str(options.tokenizer), options.tokens, options.marked, options.about)
    ) as pool:
        seeds = range(options.seed * 1_000_000 + 1, (options.seed + 1) * 1_000_000)
        stream = generated(pool, seeds, options.workers * 3)
        steps, losses, started = options.steps, [], None
        every = min(500, max(2, steps // 20))
        step = 0
        while step < steps:
            ids, learn = (torch.from_numpy(part).to(device) for part in next(stream))
            ids = ids.long()
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, options.rate)
            with mixed:
                hidden = model(ids[:, :-1])
                scores = model.logits(hidden[learn])
            loss = F.cross_entropy(scores.float(), ids[:, 1:][learn])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            if step == 1:
                started = time.monotonic()
            if step % every == 0:
                now = time.monotonic()
                recent = torch.stack(losses[-every:]).mean().item()
                each = (now - (started or began)) / (step - 1)
                if math.isfinite(options.seconds):
                    left = max(0, int((options.seconds - (now - began)) / each))
                    steps = min(steps, step + left)
                print(
                    f"step {step} of {steps}: loss {recent:.5f}, {each * 1000:.1f} ms, {now - began:.0f} s", flush=True
                )
        pool.terminate()

    weights = {name: weight.detach().half().contiguous().cpu() for name, weight in model.state_dict().items()}
    save_file(weights, str(options.out / "model.safetensors"), metadata={"format": "pt"})
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    model.eval()
    wrong = []
    for held in (False, True):
        print("held out" if held else "known", flush=True)
        wrong += report(examine(model, tokenizer, exam(held=held, each=options.exam)))
    (options.out / "wrong.json").write_text(json.dumps(wrong, ensure_ascii=False, indent=1))
    print(f"done in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

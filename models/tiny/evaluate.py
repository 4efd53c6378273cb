"""Examines the shipped model on phrasings from training, on held-out phrasings, and on a fresh set of questions."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chat import prompt
from data import Item, exam

Answer = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], bool], str]

HERE = Path(__file__).parent
SHIPPED = HERE.parent.parent / "src" / "dynamo" / "model" / "tiny"
RAW = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def with_mistralrs(folder: Path, gguf: bool = False) -> Answer:
    """Greedy answers of the folder's safetensors, or of its GGUF, on the CPU."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    import mistralrs

    # The prompt is rendered here, so mistralrs gets a template that passes it through.
    with tempfile.TemporaryDirectory() as temporary:
        raw = Path(temporary) / "raw.jinja"
        raw.write_text(RAW)
        if gguf:
            which = mistralrs.Which.GGUF(quantized_model_id=str(folder), quantized_filename="tiny.gguf")
        else:
            which = mistralrs.Which.Plain(
                model_id=str(folder), arch=mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32
            )
        runner = mistralrs.Runner(which=which, jinja_explicit=str(raw))

    def answer(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], thinking: bool) -> str:
        asked = [{"role": "user", "content": prompt(messages, tools, thinking)}]
        request = mistralrs.ChatCompletionRequest(messages=asked, model="tiny", max_tokens=200, temperature=0.0)
        choice = runner.send_chat_completion_request(request).choices[0]
        said = choice.message.content or ""
        return said if choice.finish_reason == "stop" else f"{said} [{choice.finish_reason}]"

    return answer


def examine(name: str, items: Sequence[Item], answer: Answer, right: Callable[[Item, str], bool]) -> list[str]:
    """Prints the score by topic; returns descriptions of the wrong answers."""
    asked: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    wrong = []
    began = time.monotonic()
    for item in items:
        said = answer(item.messages, item.tools, item.thinking)
        asked[item.topic] += 1
        if right(item, said):
            passed[item.topic] += 1
        else:
            wrong.append(
                f"{item.topic}: {item.messages[-1]['content']!r}\n  said  {said!r}\n  right {item.answers[0]!r}"
            )
    total, whole = passed.total(), asked.total()
    print(f"\n{name}: {total} of {whole} ({total / whole:.1%}), {time.monotonic() - began:.0f} s")
    for topic, number in asked.items():
        print(f"  {topic:<22} {passed[topic]:>6} / {number}")
    return wrong


def fresh() -> list[Item]:
    """Questions written after the last training run and never trained on; the answer must contain the given words."""
    asked = json.loads((HERE / "fresh.json").read_text(encoding="utf-8"))
    return [Item("fresh", True, [{"role": "user", "content": text}], (words,)) for text, words in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SHIPPED)
    parser.add_argument("--gguf", action="store_true", help="examine tiny.gguf instead of model.safetensors")
    parser.add_argument("--each", type=int, default=10, help="questions of each topic")
    parser.add_argument(
        "--all", action="store_true", help="every fact in every phrasing, and 200 of each topic without a list"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed for the choice of questions")
    parser.add_argument("--wrong", action="store_true", help="show the wrong answers")
    options = parser.parse_args()
    answer = with_mistralrs(options.folder, options.gguf)
    each = 200 if options.all else options.each
    wrong = []
    for held in (False, True):
        items = exam(held=held, each=each, every=options.all, seed=options.seed)
        name = "Held-out phrasings" if held else "Known phrasings"
        wrong += examine(name, items, answer, lambda item, said: said in item.answers)
    wrong += examine("Fresh questions", fresh(), answer, lambda item, said: item.answers[0] in said)
    if options.wrong:
        print("\n" + "\n".join(wrong), file=sys.stderr)


if __name__ == "__main__":
    main()

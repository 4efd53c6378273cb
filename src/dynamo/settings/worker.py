"""Settings of workers: a field here is a flag of all workers and of dynamo-run, and the engine has it in its spec."""

from typing import Annotated, Literal

from msgspec import Meta

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

AT_LEAST_1 = Meta(ge=1, le=2**31 - 1)


# fmt: off
class WorkerSettings(Settings, frozen=True, kw_only=True):
    """`python -m dynamo.ENGINE`: what every worker has; other flags are the engine's own."""

    model_path: Annotated[str | None, Setting(
        "--model", help="a folder, a GGUF file, a Hugging Face id, or tiny, the bundled model", metavar="MODEL",
        group="model", aliases=("--model-path",))] = None
    model_name: Annotated[str | None, Setting(
        "--served-model-name", help="name to serve the model as", metavar="NAME", group="model",
        default="repo or file", aliases=("--model-name",))] = None
    context_length: Annotated[int | None, AT_LEAST_1, Setting(
        "--context-length", help="fewer tokens than the model allows", group="model")] = None
    custom_jinja_template: Annotated[str | None, Setting(
        "--custom-jinja-template", help="chat template instead of the model's own", metavar="FILE",
        group="model")] = None
    endpoint_types: Annotated[str | None, Setting(
        "--dyn-endpoint-types", help="what to serve, of chat, completions, embedding and so on", metavar="LIST",
        group="model", default="what the engine can")] = None
    tool_call_parser: Annotated[str, Setting(
        "--dyn-tool-call-parser", help="format of the model's tool calls", group="model")] = "auto"
    reasoning_parser: Annotated[str, Setting(
        "--dyn-reasoning-parser", help="format of the model's reasoning", group="model")] = "auto"
    namespace: Annotated[str | None, Setting(
        "--namespace", "DYN_NAMESPACE", "namespace to serve in", "NAME", "endpoint", default="dynamo")] = None
    component: Annotated[str | None, Setting(
        "--component", "DYN_COMPONENT", "component to serve", metavar="NAME", group="endpoint",
        default="backend; prefill or decode for workers that do only that")] = None
    endpoint: Annotated[str | None, Setting(
        "--endpoint", help="its name, or all three parts as dyn://NAMESPACE.COMPONENT.ENDPOINT", metavar="NAME",
        group="endpoint", default="generate")] = None
    kv_cache_block_size: Annotated[int | None, AT_LEAST_1, Setting(
        "--kv-cache-block-size", help="tokens in a KV block", group="engine", default="16")] = None
    engine_args_file: Annotated[str | None, Setting(
        "--extra-engine-args", help="the engine's own arguments, .json or .yaml", metavar="FILE",
        group="engine")] = None
    disable_kv_routing: Annotated[bool, Setting(
        "--disable-kv-routing", help="publish no KV events", group="engine")] = False
    migration_limit: Annotated[int, Meta(ge=0, le=1023), Setting(
        "--migration-limit", metavar="N", help="times a request may move to another worker", group="requests")] = 0
    engine_request_limit: Annotated[int, Meta(ge=0), Setting(
        "--engine-request-limit", "DYN_ENGINE_REQUEST_LIMIT", "requests at once; others wait or go elsewhere", "N",
        "requests", default="no limit")] = 0
    engine_queue_limit: Annotated[int, Meta(ge=0), Setting(
        "--engine-queue-limit", "DYN_DYNAMO_REQUEST_QUEUE_LIMIT",
        "beyond that limit: requests that wait at the worker", "N", "requests")] = 16


class EngineSettings(WorkerSettings, frozen=True, kw_only=True):
    """What dynamo-run asks besides: `python -m dynamo.ENGINE` leaves these flags to the engine, which has its own."""

    model_config_path: Annotated[str | None, Setting(
        "--model-config", help="the tokenizer for a GGUF file", metavar="FOLDER", group="model")] = None
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=255), Setting(
        "--tensor-parallel-size", help="GPUs", group="engine")] = 1
    base_gpu_id: Annotated[int, Meta(ge=0, le=255), Setting(
        "--base-gpu-id", help="the first GPU to use", group="engine")] = 0
    num_nodes: Annotated[int, AT_LEAST_1, Setting(
        "--num-nodes", help="nodes that run one engine", group="engine")] = 1
    node_rank: Annotated[int, Meta(ge=0, le=2**31 - 1), Setting(
        "--node-rank", help="rank of this node; 0 is the leader", group="engine")] = 0
    leader_addr: Annotated[str, Setting(
        "--leader-addr", help="address of the leader", metavar="HOST:PORT", group="engine",
        aliases=("--dist-init-addr",))] = "127.0.0.1:9876"


class StepTraceSettings(Settings, frozen=True, kw_only=True):
    """Which steps of an engine are recorded, and where."""

    enabled: Annotated[bool, Setting(
        "--fpm-trace", "DYN_FPM_TRACE", "record the steps of the engine", group="engine")] = False
    output_path: Annotated[str, Setting(
        variables="DYN_FPM_OUTPUT_PATH",
        help="where files begin; a worker adds its id and a number: PATH.ID.000000.jsonl.gz")] = "/tmp/dynamo-fpm"
    mode: Annotated[Literal["sampled", "full"], Setting(
        variables="DYN_FPM_MODE", help="the last step of each interval, or every step")] = "sampled"
    sample_interval_ms: Annotated[int, AT_LEAST_1, Setting(
        variables="DYN_FPM_SAMPLE_INTERVAL_MS", help="the interval of sampled steps")] = 5000
    roll_bytes: Annotated[int, Meta(ge=1), Setting(
        variables="DYN_FPM_JSONL_GZ_ROLL_BYTES",
        help="bytes of a file, before they are compressed; further rows go to the next one")] = 256 << 20
    max_segments: Annotated[int, AT_LEAST_1, Setting(
        variables="DYN_FPM_MAX_SEGMENTS", help="files of a worker that are kept; older ones are deleted")] = 4
# fmt: on

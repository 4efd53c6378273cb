"""The settings of a gateway's picker. `dynamo.api.epp` has the behaviour."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

Port = Meta(ge=0, le=65535)


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536 and not any(map(str.isspace, text))


class EppSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "picker"

    # fmt: off
    mode: Annotated[Literal["dynamo", "standalone"], Setting(
        "--epp-mode", "DYN_EPP_MODE", "whose servers these are: frontends beside our workers, or any OpenAI-compatible "
        "servers", "MODE")] = "dynamo"
    host: Annotated[str, Setting(
        "--epp-host", "DYN_EPP_HOST", "address to listen on", "ADDRESS", default="127.0.0.1; in pods 0.0.0.0")] = ""
    port: Annotated[int, Port, Setting(
        "--epp-port", "DYN_EPP_PORT", "port for the gateway's questions (gRPC); 0 takes a free one", "PORT")] = 9002
    health_port: Annotated[int, Meta(ge=-1, le=65535), Setting(
        "--epp-health-port", "DYN_EPP_HEALTH_PORT", "port of health checks (gRPC, never TLS); -1 opens none",
        "PORT")] = 9003
    tls_cert_path: Annotated[str | None, Setting(
        "--tls-cert-path", "DYN_TLS_CERT_PATH", "certificate (PEM) shown to the gateway", "FILE")] = None
    tls_key_path: Annotated[str | None, Setting(
        "--tls-key-path", "DYN_TLS_KEY_PATH", "the certificate's private key (PEM)", "FILE")] = None
    pool: Annotated[str | None, Setting(
        "--pool", "DYN_EPP_INFERENCE_POOL_NAME", "InferencePool whose ready pods are the servers", "NAME")] = None
    endpoints: Annotated[tuple[str, ...], Setting(
        "--server", "DYN_EPP_SERVERS", "standalone: a server, in place of a pool; may be repeated", "HOST:PORT",
        valid=_is_endpoint, expects="HOST:PORT")] = ()
    target_port: Annotated[int, Meta(ge=1, le=65535), Setting(
        "--target-port", "DYN_EPP_TARGET_PORT", "dynamo: port of the frontend beside each worker", "PORT")] = 8000
    model_name: Annotated[str | None, Setting(
        "--model-name", "DYN_MODEL_NAME", "standalone: name by which clients ask for the model", "NAME",
        default="the model's")] = None
    model_path: Annotated[str | None, Setting(
        "--model-path", "DYN_MODEL_PATH", "standalone: the model, for its tokenizer and chat template", "MODEL",
        default="--model-name")] = None
    block_size: Annotated[int, Meta(ge=1), Setting(
        "--kv-cache-block-size", "DYN_KV_CACHE_BLOCK_SIZE", "standalone: tokens in a KV block of the servers",
        "TOKENS")] = 16
    kv_event_port: Annotated[int, Port, Setting(
        "--kv-event-port", "DYN_EPP_KV_EVENT_PORT", "standalone: port where each server publishes its KV events over "
        "ZMQ; 0: none does, caches are estimated", "PORT")] = 5557
    kv_replay_port: Annotated[int, Port, Setting(
        "--kv-event-replay-port", "DYN_EPP_KV_EVENT_REPLAY_PORT", "standalone: port where lost KV events are asked for "
        "again", "PORT", default="none")] = 0
    max_num_batched_tokens: Annotated[int | None, Meta(ge=1), Setting(
        "--max-num-batched-tokens", "DYN_EPP_MAX_NUM_BATCHED_TOKENS", "standalone: prompt tokens in one step of a "
        "server", "TOKENS", default="unknown")] = None
    body_limit_mb: Annotated[int, Meta(ge=1, le=1024), Setting(
        "--epp-body-limit-mb", "DYN_EPP_BODY_LIMIT_MB", "a larger request goes where the load is least, unread",
        "MB")] = 8
    namespace: Annotated[str | None, Setting(
        "--namespace", "DYN_NAMESPACE", "dynamo: workers of this namespace only", "NAME", default="all")] = None
    namespace_prefix: Annotated[str | None, Setting(
        "--namespace-prefix", "DYN_NAMESPACE_PREFIX", "dynamo: workers of namespaces with this prefix; beats "
        "--namespace", "PREFIX")] = None
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_cert_path is None) != (self.tls_key_path is None):
            raise ValueError("--tls-cert-path and --tls-key-path need each other: give both or neither")
        if self.mode == "standalone":
            if not self.model_name and not self.model_path:
                raise ValueError("--epp-mode standalone needs --model-path, or --model-name where that is a model's id")
            if bool(self.pool) == bool(self.endpoints):
                raise ValueError("--epp-mode standalone needs either --pool NAME or --server HOST:PORT")
        elif self.endpoints:
            raise ValueError("--server needs --epp-mode standalone: our workers are found through discovery")

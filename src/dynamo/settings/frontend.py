"""The HTTP server's settings. `dynamo.frontend` has the behaviour."""

from typing import Annotated

from msgspec import Meta

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

HTTP = "HTTP"
ACCESS = "access"
LIMITS = "limits (0 is no limit)"
NETWORK = "network"
METRICS = "metrics"
STATE = "stored state"
Seconds = Meta(ge=0, lt=1e9)
Rate = Meta(ge=0, lt=1e12)


def _is_host(text: str) -> bool:
    return bool(text) and not any(character.isspace() for character in text)


def _is_host_name(text: str) -> bool:
    return _is_host(text) and text == text.lower() and not set(text) & set(":/*")


def _is_key(text: str) -> bool:
    return bool(text.strip()) and text.isascii() and text.isprintable()


def _is_mcp_server(text: str) -> bool:
    label, _, url = text.partition("=")
    return _is_label(label) and url.startswith(("http://", "https://")) and not any(map(str.isspace, url))


def _is_mcp_command(text: str) -> bool:
    label, _, command = text.partition("=")
    return _is_label(label) and bool(command.strip())


def _is_label(text: str) -> bool:
    return text.isascii() and text.replace("-", "").replace("_", "").isalnum() and len(text) <= 32


def _is_origin(text: str) -> bool:
    return text == "*" or (text.startswith(("http://", "https://")) and not text.endswith("/"))


class FrontendSettings(Settings, frozen=True, kw_only=True):
    # fmt: off
    host: Annotated[str, Setting(
        "--http-host", "DYN_HTTP_HOST", "address to listen on; 0.0.0.0: all", "ADDRESS", HTTP,
        valid=_is_host, expects="an address or a host's name", default="127.0.0.1; in pods 0.0.0.0")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), Setting(
        "--http-port", ("DYN_HTTP_PORT", "DYNAMO_PORT"), "port to listen on; 0 takes a free one", "PORT", HTTP)] = 8080
    workers: Annotated[int, Meta(ge=1, le=256), Setting(
        "--http-workers", "DYN_HTTP_WORKERS", "processes that share the port", "N", HTTP)] = 1
    tls_cert_path: Annotated[str | None, Setting(
        "--tls-cert-path", "DYN_TLS_CERT_PATH", "certificate (PEM): serve HTTPS", "FILE", HTTP)] = None
    tls_key_path: Annotated[str | None, Setting(
        "--tls-key-path", "DYN_TLS_KEY_PATH", "the certificate's private key (PEM)", "FILE", HTTP)] = None
    kserve_grpc_server: Annotated[bool, Setting(
        "--kserve-grpc-server", "DYN_KSERVE_GRPC_SERVER",
        "serve the KServe protocol over gRPC on --http-port, and HTTP on --grpc-metrics-port", group=HTTP)] = False
    grpc_metrics_port: Annotated[int, Meta(ge=0, le=65535), Setting(
        "--grpc-metrics-port", "DYN_GRPC_METRICS_PORT", "port of HTTP beside gRPC; 0 takes a free one", "PORT",
        HTTP)] = 8788
    ui: Annotated[bool, Setting(
        "--ui", "DYN_HTTP_UI", "serve the chat page at /", group=HTTP)] = True
    cors_allow_origins: Annotated[tuple[str, ...], Setting(
        "--cors-allow-origin", "DYN_HTTP_CORS_ALLOW_ORIGIN",
        "web pages that may read answers, * for all; may be repeated", "ORIGIN", HTTP, valid=_is_origin,
        expects="* or like https://example.org")] = ()
    allowed_hosts: Annotated[tuple[str, ...], Setting(
        "--http-allowed-hosts", "DYN_HTTP_ALLOWED_HOSTS",
        "name by which clients may call a server on a loopback address without keys, beside localhost and addresses; "
        "may be repeated", "NAME", HTTP, valid=_is_host_name,
        expects="a host's name in lower case, without a port")] = ()
    sse_keep_alive_secs: Annotated[float, Seconds, Setting(
        "--sse-keep-alive-secs", "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS",
        "send a comment this often until the first token", "SECONDS", HTTP, default="off",
        variable_scale=0.001)] = 0.0
    ignore_unknown_fields: Annotated[bool, Setting(
        "--ignore-unknown-fields", "DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS",
        "ignore unknown request fields, and name them in the header x-dynamo-warning", group=HTTP)] = True
    refuse_unknown_fields: Annotated[bool, Setting(
        "--refuse-unknown-fields", "DYN_REFUSE_UNKNOWN_FIELDS", "answer 400 to requests with unknown fields",
        group=HTTP)] = False
    strip_anthropic_preamble: Annotated[bool, Setting(
        "--strip-anthropic-preamble", "DYN_STRIP_ANTHROPIC_PREAMBLE",
        "leave the x-anthropic-billing-header line that Claude Code writes into its system prompt out of the prompt: "
        "it differs from session to session, so that none finds what another has cached", group=HTTP)] = False
    api_keys: Annotated[tuple[str, ...], Setting(
        "--api-key", "DYN_API_KEY",
        "require this key; may be repeated (the variable: commas; process lists do not show it)", "KEY", ACCESS,
        valid=_is_key, expects="printable ASCII and not empty", secret=True)] = ()
    api_keys_file: Annotated[str | None, Setting(
        "--api-keys-file", "DYN_API_KEYS_FILE", "keys with names, limits and weights (TOML)", "FILE", ACCESS)] = None
    admin_keys: Annotated[tuple[str, ...], Setting(
        "--admin-key", "DYN_ADMIN_KEY",
        "key of an administrator: for the routes that change or show the inside of the server, and all others", "KEY",
        ACCESS, valid=_is_key, expects="printable ASCII and not empty", secret=True)] = ()
    share_kv_cache: Annotated[bool, Setting(
        "--share-kv-cache", "DYN_SHARE_KV_CACHE",
        "let API keys use prefixes that others computed: faster, but a key can measure what others asked",
        group=ACCESS)] = False
    protect_metrics: Annotated[bool, Setting(
        "--protect-metrics", "DYN_PROTECT_METRICS", "require a key at /metrics too", group=ACCESS)] = False
    mcp_servers: Annotated[tuple[str, ...], Setting(
        "--mcp-server", "DYN_MCP_SERVER",
        "MCP server whose tools clients may use, each call with an approval; may be repeated", "LABEL=URL", ACCESS,
        valid=_is_mcp_server, expects="like files=https://example.org/mcp")] = ()
    mcp_commands: Annotated[tuple[str, ...], Setting(
        "--mcp-command", "DYN_MCP_COMMAND",
        "the same for a program on this machine; only administrators may use it", "LABEL=COMMAND", ACCESS,
        valid=_is_mcp_command, expects="like files=npx some-server")] = ()
    body_limit_mb: Annotated[int, Meta(ge=1), Setting(
        "--http-body-limit-mb", "DYN_HTTP_BODY_LIMIT_MB", "largest request body, unpacked", "MB", LIMITS)] = 45
    body_items: Annotated[int, Meta(ge=0), Setting(
        "--http-body-items", "DYN_HTTP_BODY_ITEMS",
        "most values in the lists and objects of a request body, token ids included", "N", LIMITS)] = 500_000
    body_fields: Annotated[int, Meta(ge=0), Setting(
        "--http-body-fields", "DYN_HTTP_BODY_FIELDS", "most fields, lists and objects of a request body", "N",
        LIMITS)] = 65_536
    arriving_bodies_mb: Annotated[int, Meta(ge=0), Setting(
        "--http-arriving-bodies-mb", "DYN_HTTP_ARRIVING_BODIES_MB",
        "memory of request bodies that are still arriving, per process; beyond it the largest is refused", "MB",
        LIMITS)] = 256
    max_concurrent_requests: Annotated[int, Meta(ge=0), Setting(
        "--max-concurrent-requests", "DYN_HTTP_MAX_CONCURRENT_REQUESTS",
        "refuse more requests than this at once, per process; those still arriving do not count", "N", LIMITS)] = 0
    key_requests_per_second: Annotated[float, Rate, Setting(
        "--key-requests-per-second", "DYN_KEY_REQUESTS_PER_SECOND",
        "requests to models per second and API key; without keys, of all together", "X", LIMITS)] = 0.0
    key_tokens_per_second: Annotated[float, Rate, Setting(
        "--key-tokens-per-second", "DYN_KEY_TOKENS_PER_SECOND",
        "tokens per second and API key, prompts and answers", "X", LIMITS)] = 0.0
    key_concurrent_requests: Annotated[int, Meta(ge=0), Setting(
        "--key-concurrent-requests", "DYN_KEY_CONCURRENT_REQUESTS", "requests at once per API key", "N", LIMITS)] = 0
    overload_status_code: Annotated[int, Meta(ge=400, le=599), Setting(
        "--overload-status-code", "DYN_HTTP_OVERLOAD_STATUS_CODE",
        "answer to refused requests, and where all workers are busy; 529 is usual too", "STATUS", LIMITS)] = 503
    header_timeout: Annotated[float, Seconds, Setting(
        "--http-header-timeout-secs", "DYN_HTTP_HEADER_TIMEOUT_SECS", "time a client has to send a request's header",
        "SECONDS", LIMITS)] = 15.0
    body_timeout: Annotated[float, Seconds, Setting(
        "--http-body-timeout-secs", "DYN_HTTP_BODY_TIMEOUT_SECS", "time a client has to send a request's body",
        "SECONDS", LIMITS)] = 60.0
    idle_timeout: Annotated[float, Seconds, Setting(
        "--http-idle-timeout-secs", "DYN_HTTP_IDLE_TIMEOUT_SECS", "time between two requests of a connection",
        "SECONDS", LIMITS)] = 75.0
    stall_timeout: Annotated[float, Seconds, Setting(
        "--http-stall-timeout-secs", "DYN_HTTP_STALL_TIMEOUT_SECS", "time a client may leave its answer unread",
        "SECONDS", LIMITS)] = 60.0
    graceful_shutdown_timeout: Annotated[float, Seconds, Setting(
        "--graceful-shutdown-timeout-secs", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        "time running requests have after SIGTERM", "SECONDS", LIMITS)] = 30.0
    open_files: Annotated[int, Setting(
        variables="DYN_FRONTEND_FD_LIMIT_TARGET", help="open files to ask the system for; 0 leaves its limit alone",
        group=LIMITS)] = 65536
    state_dir: Annotated[str | None, Setting(
        "--state-dir", "DYN_HTTP_STATE_DIR",
        "keep responses, conversations, files and batches in this folder; without it, as long as the server runs",
        "FOLDER", STATE)] = None
    stored_responses: Annotated[int, Meta(ge=0), Setting(
        "--stored-responses", "DYN_HTTP_STORED_RESPONSES",
        "keep this number of responses and of conversations; the oldest go first; 0 keeps none", "N", STATE)] = 10_000
    background_responses: Annotated[int, Meta(ge=0), Setting(
        "--background-responses", "DYN_HTTP_BACKGROUND_RESPONSES",
        "the most responses that may run in the background at once, for each key; 0 rejects them", "N", STATE)] = 64
    stored_responses_mb: Annotated[int, Meta(ge=1), Setting(
        "--stored-responses-mb", "DYN_HTTP_STORED_RESPONSES_MB",
        "keep responses up to this size in all, and as much of conversations", "MB", STATE)] = 64
    stored_files_mb: Annotated[int, Meta(ge=1), Setting(
        "--stored-files-mb", "DYN_HTTP_STORED_FILES_MB",
        "keep uploaded files and results of batches up to this size per API key; the oldest go first",
        "MB", STATE)] = 1024
    http_batch_concurrency: Annotated[int, Meta(ge=1, le=65536), Setting(
        "--http-batch-concurrency", "DYN_HTTP_BATCH_CONCURRENCY", "requests of a batch at a time", "N", STATE)] = 32
    namespace: Annotated[str | None, Setting(
        "--namespace", "DYN_NAMESPACE", "serve models of this namespace only", "NAME", NETWORK, default="all")] = None
    namespace_prefix: Annotated[str | None, Setting(
        "--namespace-prefix", "DYN_NAMESPACE_PREFIX",
        "serve models of namespaces with this prefix; beats --namespace", "PREFIX", NETWORK)] = None
    migration_limit: Annotated[int | None, Meta(ge=0, le=1023), Setting(
        "--migration-limit", "DYN_MIGRATION_LIMIT",
        "times a request may move to another worker when its own fails", "N", NETWORK,
        default="what the model's workers ask for")] = None
    migration_max_seq_len: Annotated[int | None, Meta(ge=1), Setting(
        "--migration-max-seq-len", "DYN_MIGRATION_MAX_SEQ_LEN",
        "a request with more tokens than this, prompt and answer, does not move", "TOKENS", NETWORK,
        default="no limit")] = None
    model_restart_secs: Annotated[float, Seconds, Setting(
        "--model-restart-secs", "DYN_MODEL_RESTART_SECS",
        "time a model without workers is answered with 503, as restarting, before it is 404", "SECONDS",
        NETWORK)] = 60.0
    model_wait_secs: Annotated[float, Seconds, Setting(
        "--model-wait-secs", "DYN_MODEL_WAIT_SECS",
        "time a request waits for a worker of a model that loads or restarts, which is then listed too",
        "SECONDS", NETWORK)] = 0.0
    metrics_prefix: Annotated[str, Setting(
        "--metrics-prefix", "DYN_METRICS_PREFIX", "prefix of the metrics' names", "PREFIX",
        METRICS)] = "dynamo_frontend"
    # fmt: on

    @property
    def ignores_unknown_fields(self) -> bool:
        return self.ignore_unknown_fields and not self.refuse_unknown_fields

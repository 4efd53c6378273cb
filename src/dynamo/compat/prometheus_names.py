"""Names of metrics and labels, for programs and dashboards that should not spell them out."""

from __future__ import annotations


class name_prefix:
    COMPONENT = "dynamo_component"
    FRONTEND = "dynamo_frontend"
    ROUTER = "dynamo_router"
    REQUEST_PLANE = "dynamo_request_plane"


class labels:
    NAMESPACE = "dynamo_namespace"
    COMPONENT = "dynamo_component"
    ENDPOINT = "dynamo_endpoint"
    WORKER_ID = "worker_id"
    DP_RANK = "dp_rank"
    MODEL = "model"
    MODEL_NAME = "model_name"
    WORKER_TYPE = "worker_type"
    ROUTER_ID = "router_id"


class component_names:
    ROUTER = "router"


class frontend_service:
    REQUESTS_TOTAL = "requests_total"
    QUEUED_REQUESTS = "queued_requests"
    INFLIGHT_REQUESTS = "inflight_requests"
    DISCONNECTED_CLIENTS = "disconnected_clients"
    REQUEST_DURATION_SECONDS = "request_duration_seconds"
    INPUT_SEQUENCE_TOKENS = "input_sequence_tokens"
    OUTPUT_SEQUENCE_TOKENS = "output_sequence_tokens"
    OUTPUT_TOKENS_TOTAL = "output_tokens_total"
    CACHED_TOKENS = "cached_tokens"
    TIME_TO_FIRST_TOKEN_SECONDS = "time_to_first_token_seconds"
    INTER_TOKEN_LATENCY_SECONDS = "inter_token_latency_seconds"
    MODEL_TOTAL_KV_BLOCKS = "model_total_kv_blocks"
    MODEL_MAX_NUM_SEQS = "model_max_num_seqs"
    MODEL_MAX_NUM_BATCHED_TOKENS = "model_max_num_batched_tokens"
    MODEL_CONTEXT_LENGTH = "model_context_length"
    MODEL_KV_CACHE_BLOCK_SIZE = "model_kv_cache_block_size"
    MODEL_MIGRATION_LIMIT = "model_migration_limit"
    MODEL_MIGRATION_TOTAL = "model_migration_total"


class kvstats:
    TOTAL_BLOCKS = "total_blocks"
    GPU_CACHE_USAGE_PERCENT = "gpu_cache_usage_percent"
    KV_CACHE_HIT_RATE = "kv_cache_hit_rate"


class router:
    REQUESTS_STARTED_TOTAL = "router_requests_started_total"
    REQUESTS_TOTAL = "router_requests_total"
    TIME_TO_FIRST_TOKEN_SECONDS = "router_time_to_first_token_seconds"
    INTER_TOKEN_LATENCY_SECONDS = "router_inter_token_latency_seconds"
    INPUT_SEQUENCE_TOKENS = "router_input_sequence_tokens"
    OUTPUT_SEQUENCE_TOKENS = "router_output_sequence_tokens"
    KV_HIT_RATE = "router_kv_hit_rate"
    KV_EVENT_SOURCE_MISMATCH_WORKERS = "router_kv_event_source_mismatch_workers"
    WORKER_REGISTERED = "router_worker_registered"


class kvrouter:
    KV_CACHE_EVENTS_APPLIED = "kv_cache_events_applied"


class kv_publisher:
    ENGINES_DROPPED_EVENTS_TOTAL = "kv_publisher_engines_dropped_events_total"


class model_info:
    LOAD_TIME_SECONDS = "model_load_time_seconds"

"""The model card: what a frontend needs to turn text into token ids for a worker, and back."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import xxhash
from msgspec import Meta, Struct

Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""0 means the same as unset."""
MAX_RANKS = 1024


class ModelInput(enum.Enum):
    """What a worker takes: token ids, the OpenAI request unchanged, or tensors."""

    Tokens = "tokens"
    Text = "text"
    Tensor = "tensor"


class ModelType(enum.Flag):
    """What a worker offers. `Backend` is the older name for a token worker that serves chat and completions."""

    Chat = 1
    Completions = 2
    Embedding = 4
    TensorBased = 8
    Prefill = 16
    Images = 32
    Audios = 64
    Videos = 128
    Realtime = 256
    Classify = 512
    Pooling = 1024
    Completion = Completions
    Backend = Chat | Completions

    def names(self) -> list[str]:
        return [str(kind.name).lower() for kind in self]


class WorkerType(enum.Enum):
    Aggregated = "aggregated"
    Prefill = "prefill"
    Decode = "decode"
    Encode = "encode"


NEEDS = {WorkerType.Prefill: [[WorkerType.Decode]], WorkerType.Decode: [[WorkerType.Prefill]]}
"""What workers of one part of a request say that they need."""


def check_model_name(name: str) -> None:
    """A ValueError for a name that would garble logs, headers and lists."""
    if not name:
        raise ValueError("a model needs a name")
    if not name.isprintable():
        raise ValueError(f"{name!a} cannot be a model's name: use printable characters")


class CardFile(Struct, kw_only=True, frozen=True):
    """A file of the model: its path on the worker, and the checksum every copy must have."""

    path: str
    checksum: str


DRAFT_TOKENS = "draft_tokens"
"""In `runtime_data`: how many tokens the engine guesses ahead at a time, and says in its load how many were right."""
SHOW_SPECIAL_TOKENS = "show_special_tokens"
"""In `runtime_data`: the engine's answers are shown with their special tokens, unless a request says otherwise."""


class ModelRuntimeConfig(Struct, kw_only=True, omit_defaults=True):
    """What the engine reported when it started."""

    total_kv_blocks: Size | None = None
    max_num_seqs: Size | None = None
    max_num_batched_tokens: Size | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    guided_decoding: bool | None = None
    """Whether the engine can constrain its output to a schema, regex, choice or grammar. Unset means no for a worker
    that takes tokens; one that takes text decides for itself, as it sees the whole request."""
    resumes_guided: bool = False
    """Whether its grammars take in the `resumed_tokens` of a request, so that it continues another's guided answer."""
    data_parallel_size: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 1
    enable_local_indexer: bool = True
    runtime_data: dict[str, Any] = {}
    context_length: Size | None = None
    """The longest sequence, where the worker gave no other when it registered."""

    # What ai-dynamo's workers set and nothing here reads: it travels in the card.
    tokenizer_backend: str | None = None
    exclude_tools_when_tool_choice_none: bool = False
    data_parallel_start_rank: int = 0
    kv_event_publishing_enabled: bool | None = None
    kv_event_source_mode: str | None = None
    kv_state_endpoint: str | None = None
    enable_eagle: bool = False
    taints: set[str] = set()
    stable_routing_id: str | None = None
    topology_domains: dict[str, str] = {}
    kv_transfer_domain: str | None = None
    kv_transfer_enforcement: Literal["required", "preferred"] | None = None
    kv_transfer_preferred_weight: float | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Checked where a wrong value would otherwise show up only in another process."""
        if name == "kv_transfer_enforcement" and value not in (None, "required", "preferred"):
            raise ValueError(f"kv_transfer_enforcement must be 'required' or 'preferred', not {value!r}")
        if name == "topology_domains" and not all(isinstance(part, str) for pair in value.items() for part in pair):
            raise TypeError("topology_domains must have strings as keys and values")
        Struct.__setattr__(self, name, value)

    def set_engine_specific(self, key: str, value: Any) -> None:
        self.runtime_data = {**self.runtime_data, key: value}

    def get_engine_specific(self, key: str) -> Any:
        return self.runtime_data.get(key)

    def set_disaggregated_endpoint(self, bootstrap_host: str | None = None, bootstrap_port: int | None = None) -> None:
        self.bootstrap_host, self.bootstrap_port = bootstrap_host, bootstrap_port


class LoraInfo(Struct, kw_only=True, omit_defaults=True):
    """The LoRA adapter that requests for this model use."""

    name: str
    base_model: str | None = None
    max_gpu_lora_count: int | None = None


class ModelCard(Struct, kw_only=True, omit_defaults=True):
    name: str
    model_type: int
    model_input: ModelInput = ModelInput.Tokens
    worker_type: WorkerType = WorkerType.Aggregated
    needs: list[list[WorkerType]] = []
    """Kinds of workers that must be there too, alternatives of combinations. Nothing here waits for them: a decode
    worker without a prefill worker computes prompts itself."""
    source: str | None = None
    """The Hugging Face id or path given to the worker; a frontend on another machine resolves it again, if
    no worker sends it the files."""
    files: dict[str, CardFile] = {}
    """By role: config, generation_config, tokenizer, tokenizer_config, special_tokens_map, chat_template,
    chat_template:NAME (for a purpose, such as tool_use), custom_template (the operator's own, in place of the model's);
    or gguf, whose checksum covers the metadata at its head."""
    serves_files: bool = False
    """Whether the worker sends these files to readers that do not have them."""
    context_length: int | None = None
    kv_cache_block_size: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 16
    migration_limit: Size = 0
    user_data: dict[str, Any] | None = None
    tensor_model_config: dict[str, Any] | None = None
    """The inputs and outputs of a model that takes tensors."""
    runtime_config: ModelRuntimeConfig = msgspec.field(default_factory=ModelRuntimeConfig)
    lora: LoraInfo | None = None

    def __post_init__(self) -> None:
        check_model_name(self.name)

    @property
    def type(self) -> ModelType:
        return ModelType(self.model_type)

    @property
    def takes_requests(self) -> bool:
        """Whether clients' requests may be sent to this worker: not if it only does prefill or encoding for others."""
        return self.worker_type in (WorkerType.Aggregated, WorkerType.Decode) and not self.prefills

    @property
    def prefills(self) -> bool:
        """Whether the worker computes prompts for decode workers."""
        return self.worker_type is WorkerType.Prefill or bool(self.model_type & ModelType.Prefill.value)

    @property
    def accepts_guided_decoding(self) -> bool:
        """Whether a request may constrain the form of the output."""
        declared = self.runtime_config.guided_decoding
        return self.model_input is ModelInput.Text if declared is None else declared

    def checksum(self) -> str:
        """Equal for two workers exactly when a frontend may send either of them the same request."""
        identity = (
            self.name,
            self.model_type,
            self.model_input,
            None if self.takes_requests else self.worker_type,
            sorted((role, file.checksum) for role, file in self.files.items()),
            self.context_length,
            self.kv_cache_block_size,
            self.runtime_config.tool_call_parser,
            self.runtime_config.reasoning_parser,
            self.runtime_config.guided_decoding,
        )
        return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(identity))

"""What one worker serves, however it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dynamo.engines.registry import EngineSpec, check_engine, engine_entry
from dynamo.pipeline.output_formats import AUTO, NONE
from dynamo.pipeline.parse import reasoning_formats, tool_formats
from dynamo.protocols.card import ModelType
from dynamo.runtime.plane.admission import RequestLimit
from dynamo.settings import nearest
from dynamo.settings.worker import StepTraceSettings
from dynamo.worker.files import engine_arguments


class WorkerConfig(Struct, frozen=True, kw_only=True):
    engine: str
    file: str | None = None
    """The user's Python file, for engines that run one."""
    model: str | None = None
    model_config: str | None = None
    model_name: str | None = None
    custom_jinja_template: str | None = None
    model_type: ModelType | None = None
    """None: what the engine can serve."""
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    tensor_parallel_size: int = 1
    base_gpu_id: int = 0
    num_nodes: int = 1
    node_rank: int = 0
    leader_addr: str | None = None
    extra_engine_args: str | None = None
    """A file."""
    arguments: list[str] = []
    kv_events: bool = True
    migration_limit: int = 0
    request_limit: RequestLimit | None = None
    step_trace: StepTraceSettings = StepTraceSettings()

    def check(self) -> None:
        """Raises ValueError for what can be refused without looking at the model."""
        for flag, name, known in (
            ("--dyn-tool-call-parser", self.tool_call_parser, tool_formats()),
            ("--dyn-reasoning-parser", self.reasoning_parser, reasoning_formats()),
        ):
            names = [AUTO, NONE, *known]
            if name not in names:
                hint = nearest(name, names) or "; use " + ", ".join(names)
                raise ValueError(f"{flag}: unknown format '{name}'{hint}")
        if self.custom_jinja_template and engine_entry(self.engine).takes == "text":
            raise ValueError(f"--custom-jinja-template: the engine '{self.engine}' takes text and uses no template")

    def spec(self, environ: Mapping[str, str]) -> EngineSpec:
        """For the engine, still without its model. Raises EngineError if the file of arguments cannot be read, if the
        engine cannot be loaded, and for GPUs or nodes that it cannot use."""
        spec = EngineSpec(
            context_length=self.context_length,
            kv_cache_block_size=self.kv_cache_block_size,
            tensor_parallel_size=self.tensor_parallel_size,
            base_gpu_id=self.base_gpu_id,
            num_nodes=self.num_nodes,
            node_rank=self.node_rank,
            leader_addr=self.leader_addr,
            extra_engine_args=engine_arguments(self.extra_engine_args),
            kv_events=self.kv_events,
            steps=self.step_trace.enabled,
            file=self.file,
            arguments=self.arguments,
            environ=environ,
        )
        check_engine(self.engine, spec)
        return spec

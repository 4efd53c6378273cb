"""What every worker does around an engine, and the contract of an engine for those who write one."""

from dynamo.engines.base import (
    AdapterHost,
    CacheOwner,
    Control,
    Controllable,
    DeathListener,
    DeathSource,
    Engine,
    EngineError,
    EngineHandoff,
    EngineInfo,
    HealthChecked,
    HeldPrefix,
    KvListener,
    KvSocket,
    KvSocketSource,
    KvSource,
    KvTierListener,
    KvTierSource,
    LoadListener,
    LoadSource,
    MetricsRegistry,
    MetricsSource,
    RankLoad,
    Running,
    StepListener,
    StepSource,
    WorkerHandoff,
)
from dynamo.engines.catalog import EngineEntry
from dynamo.engines.registry import EngineSpec
from dynamo.protocols.card import ModelInput
from dynamo.runtime.stream import Sink
from dynamo.worker.serve import serve_engine

PrefixHandoff, EngineTransfer = WorkerHandoff, EngineHandoff
"""Their names until 0.2."""

__all__ = [
    "AdapterHost",
    "CacheOwner",
    "Control",
    "Controllable",
    "DeathListener",
    "DeathSource",
    "Engine",
    "EngineEntry",
    "EngineError",
    "EngineHandoff",
    "EngineInfo",
    "EngineSpec",
    "EngineTransfer",
    "HealthChecked",
    "HeldPrefix",
    "KvListener",
    "KvSocket",
    "KvSocketSource",
    "KvSource",
    "KvTierListener",
    "KvTierSource",
    "LoadListener",
    "LoadSource",
    "MetricsRegistry",
    "MetricsSource",
    "ModelInput",
    "PrefixHandoff",
    "RankLoad",
    "Running",
    "Sink",
    "StepListener",
    "StepSource",
    "WorkerHandoff",
    "serve_engine",
]

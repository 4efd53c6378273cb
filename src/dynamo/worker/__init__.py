"""What every worker does around an engine, and the contract of an engine for those who write one."""

from dynamo.engines.base import (
    CacheOwner,
    Control,
    Controllable,
    DeathListener,
    DeathSource,
    Engine,
    EngineError,
    EngineInfo,
    HealthChecked,
    HeldPrefix,
    KvListener,
    KvSocket,
    KvSocketSource,
    KvSource,
    LoadListener,
    LoadSource,
    MetricsRegistry,
    MetricsSource,
    PrefixHandoff,
    RankLoad,
    Running,
)
from dynamo.engines.catalog import EngineEntry
from dynamo.engines.registry import EngineSpec
from dynamo.protocols.card import ModelInput
from dynamo.runtime.stream import Sink
from dynamo.worker.serve import serve_engine

__all__ = [
    "CacheOwner",
    "Control",
    "Controllable",
    "DeathListener",
    "DeathSource",
    "Engine",
    "EngineEntry",
    "EngineError",
    "EngineInfo",
    "EngineSpec",
    "HealthChecked",
    "HeldPrefix",
    "KvListener",
    "KvSocket",
    "KvSocketSource",
    "KvSource",
    "LoadListener",
    "LoadSource",
    "MetricsRegistry",
    "MetricsSource",
    "ModelInput",
    "PrefixHandoff",
    "RankLoad",
    "Running",
    "Sink",
    "serve_engine",
]

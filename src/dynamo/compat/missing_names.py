"""Names of ai-dynamo's library that this one does not have, and what to use instead."""

from __future__ import annotations

_FPM = "forward pass metrics are recorded to files, with --fpm-trace"

ABSENT = {
    "AicPerfConfig": "measure the engine with dynamo profile",
    "ApproxKvIndexer": "use KvRouter with KvRouterConfig(use_kv_events=False)",
    "BlockManager": "KV blocks are managed by the engines",
    "Connection": "a Connector has one NIXL agent; make another Connector for another",
    "FpmDirectPublisher": _FPM,
    "FpmEventRelay": _FPM,
    "FpmEventSubscriber": _FPM,
    "FrontendExtensionContext": "routes cannot be added to the frontend",
    "FrontendResponse": "routes cannot be added to the frontend",
    "FrontendRoute": "routes cannot be added to the frontend",
    "KvDcRelay": "there are no relays between data centres",
    "KvIndexer": "use KvRouter, or RadixTree for an index of your own",
    "KvStateAgentHost": "there are no KV state agents",
    "KvStateAttachmentOwner": "there are no KV state agents",
    "LoRADownloader": "workers fetch adapters themselves: POST /v1/loras of their status server",
    "MediaDecoder": "images, audio and video are not decoded",
    "MediaFetcher": "images, audio and video are not fetched",
    "ModelCardInstanceId": "Client.instances() lists instances",
    "MultimodalEmbeddingCachePublisher": "there is no cache of embeddings",
    "PyAsyncRequestStream": "endpoints take one request and stream the answer",
    "ReasoningConfig": "MockEngineArgs(reasoning={...}) takes the same fields",
    "Remote": "operations connect to the other side by its RdmaMetadata",
    "RoutingConstraints": "requests cannot constrain their routing",
    "SelectionService": "use KvRouter.best_worker",
    "SglangArgs": "the mocker imitates vLLM",
    "SpanProxy": "handlers have no spans of their own",
    "TrtllmArgs": "the mocker imitates vLLM",
    "VirtualConnectorClient": "import it from dynamo.planner.act",
    "VirtualConnectorCoordinator": "use VirtualConnector of dynamo.planner.act",
    "backend": "an engine is served with serve_endpoint and register_model",
    "configuration": "read flags with argparse",
    "multimodal": "images, audio and video are not decoded",
    "resolve_routing_image_token_id": "images are not routed",
    "run_kv_indexer": "use python -m dynamo.router",
    "run_select_service": "use python -m dynamo.router",
    "run_slot_tracker": "use python -m dynamo.router",
    "update_model_taints": "workers have no taints",
}


def missing(module: str, name: str) -> Exception:
    """What to raise for a name that the module does not have."""
    if name in ABSENT:
        return ImportError(f"'{name}' is not in this Dynamo's {module}: {ABSENT[name]}")
    return AttributeError(f"module '{module}' has no attribute '{name}'")

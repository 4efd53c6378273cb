"""SGLang, which a user installs beside this package."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

from dynamo.engines.base import Engine
from dynamo.engines.registry import EngineSpec, check_names

KNOWN = ("0.5.17", "0.5.23")
"""The oldest and the newest version whose source this was written after."""
NAMES = (
    "sglang.srt.server_args:ServerArgs.add_cli_args",
    "sglang.srt.server_args:ServerArgs.from_cli_args",
    "sglang.srt.entrypoints.engine:Engine.async_generate",
    "sglang.srt.entrypoints.engine:Engine.get_all_child_pids",
    "sglang.srt.entrypoints.engine:Engine.shutdown",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.abort_request",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.auto_create_handle_loop",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.flush_cache",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.get_loads",
)

# SGLang takes seconds to import, but if it is missing, that must be known before a model is fetched.
_found = importlib.util.find_spec("sglang")
if _found is None or _found.origin is None:  # a folder of that name is not SGLang
    raise ModuleNotFoundError("No module named 'sglang'", name="sglang")


def sglang_from_spec(spec: EngineSpec) -> Engine:
    """Imports SGLang and reads its arguments; raises EngineError for those it does not have."""
    check_names("sglang", NAMES, KNOWN)
    from dynamo.engines.sglang.arguments import server_arguments
    from dynamo.engines.sglang.engine import SglangEngine
    from dynamo.engines.sglang.follower import SglangFollower
    from dynamo.engines.sglang.handoff import bootstrap_host

    sockets = tempfile.TemporaryDirectory(prefix="dynamo-sglang-", ignore_cleanup_errors=True)
    try:
        args = server_arguments(spec, sockets=Path(sockets.name))
    except BaseException:
        sockets.cleanup()
        raise
    if args.node_rank:
        sockets.cleanup()
        # Otherwise SGLang never returns on nodes that follow, and serves HTTP there.
        os.environ.setdefault("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "0")
        return SglangFollower(args)
    return SglangEngine(args, sockets, bootstrap_host(os.environ))

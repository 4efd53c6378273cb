"""Opens the tiers of one llama.cpp engine. A tier that cannot be used is named in one line, and the engine serves."""

from __future__ import annotations

import logging
from pathlib import Path

import xxhash

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.args import LlamaCppArgs
from dynamo.engines.llamacpp.blocks import BlockMap
from dynamo.engines.llamacpp.decoder import LlamaDecoder
from dynamo.engines.llamacpp.library import version
from dynamo.engines.llamacpp.prefix_tiers import PrefixTiers
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import FolderTier, MemoryTier, TierFolderError, TierStore

log = logging.getLogger(__name__)

_GB = 10**9
_SEGMENT_TOKENS = 256
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


def open_tiers(args: LlamaCppArgs, file: Path, decoder: LlamaDecoder, blocks: BlockMap) -> PrefixTiers | None:
    if args.kv_offload_dir and not args.kv_offload_disk_gb:
        log.warning("--kv-offload-dir %s is not used: --kv-offload-disk-gb is 0", args.kv_offload_dir)
    if not args.kv_offload_gb and not args.kv_offload_disk_gb:
        return None
    if not blocks.caching:
        log.warning("--kv-offload-gb is not used: a recurrent model has no prefixes to keep")
        return None
    segment = max(1, _SEGMENT_TOKENS // blocks.block_size)
    memory = folder = None
    if args.kv_offload_gb:
        memory = MemoryTier(int(args.kv_offload_gb * _GB))
    if args.kv_offload_disk_gb and args.kv_offload_dir:
        place = Path(args.kv_offload_dir).expanduser() / fingerprint(file, args.cache_type, blocks.block_size)
        try:
            folder = FolderTier(place, int(args.kv_offload_disk_gb * _GB), segment)
        except TierFolderError as error:
            log.warning("no KV blocks are kept on disk: %s", error)
    if memory is None and folder is None:
        return None
    store = TierStore(segment * blocks.block_size, Pace(), memory=memory, folder=folder)
    tiers = PrefixTiers(decoder, blocks, store)
    try:
        tiers.calibrate()
    except EngineError as error:
        log.warning("no KV blocks are kept outside the KV cache: %s", error)
        tiers.close()
        return None
    held = f", {folder.used / _GB:.3g} GB of them from before" if folder is not None and len(folder) else ""
    log.info(
        "keeping KV blocks in %g GB of memory and %g GB of disk%s",
        args.kv_offload_gb, args.kv_offload_disk_gb if folder is not None else 0, held,
    )  # fmt: skip
    return tiers


def fingerprint(file: Path, cache_type: str, block_size: int) -> str:
    """Equal for two engines exactly when the states of one are right for the other."""
    return weights_digest(file, 2, version(), cache_type, block_size, file.stat().st_mtime_ns)


def weights_digest(file: Path, *about: object) -> str:
    """Covers `about`, the size of the file and samples of its bytes; equal for copies of one file."""
    size = file.stat().st_size
    digest = xxhash.xxh3_128(repr((*about, size)).encode())
    with file.open("rb") as weights:
        for sample in range(_SAMPLES):
            weights.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(weights.read(_SAMPLE_BYTES))
    return str(digest.hexdigest())

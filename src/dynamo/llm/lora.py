"""Names of LoRA adapters."""

import xxhash

_MOST = (1 << 31) - 1


def lora_name_to_id(lora_name: str) -> int:
    """A number in 1..2^31-1 that is the same for a name in every process."""
    return xxhash.xxh3_64_intdigest(lora_name.encode()) % _MOST + 1

"""Whether new weights fit a running model: vLLM finds out when the old ones are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynamo.protocols.errors import InvalidArgument

_LARGEST_HEADER = 100 << 20


def checked_weights(path: Any, running: Path) -> Path:
    """The folder; raises InvalidArgument unless it has the tensors, by name and shape, of the model that runs."""
    if not isinstance(path, str) or not path:
        raise InvalidArgument("model_path must be a folder of the worker's machine with the new weights")
    folder = Path(path).expanduser().resolve()
    new, old = _shapes(folder), _shapes(running)
    for name in sorted(new.keys() | old.keys()):
        if new.get(name) != old.get(name):
            found, needed = (shapes.get(name, "no such tensor") for shapes in (new, old))
            raise InvalidArgument(f"the weights in {folder} do not fit: {name} is {found}, the model has {needed}")
    return folder


def _shapes(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(f"there are no weights (*.safetensors) in {folder}")
    shapes: dict[str, Any] = {}
    for file in files:
        try:
            with file.open("rb") as read:
                size = int.from_bytes(read.read(8), "little")
                header: Any = json.loads(read.read(size)) if size <= _LARGEST_HEADER else None
            shapes |= {name: about["shape"] for name, about in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"{file} is no safetensors file: {error}") from None
    return shapes

"""A distribution in a folder, as pip would leave it."""

from __future__ import annotations

from pathlib import Path

from support.stack import SOURCE


def install(folder: Path, name: str, modules: dict[str, str], points: str) -> str:
    """Write modules and the entry points of the group dynamo.engines; returns the PYTHONPATH that finds them."""
    for path, text in modules.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dynamo.engines]\n{points}\n")
    return f"{SOURCE}:{folder}"

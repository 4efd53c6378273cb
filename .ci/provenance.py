"""Where the archives of a folder come from: an in-toto statement with SLSA provenance, on standard output.

It says which commit was built by what, and the digests of what came out. It is not signed: whoever publishes signs it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

TOOLS = ("build", "pip")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def statement(folder: Path) -> dict[str, object]:
    archives = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
            for path in archives
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://packaging.python.org/en/latest/specifications/",
                "externalParameters": {"command": "python -m build", "uncommittedChanges": bool(changed)},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": git("rev-parse", "HEAD")}},
                    *({"name": name, "annotations": {"version": version(name)}} for name in TOOLS),
                ],
            },
            "runDetails": {
                "builder": {"id": ".ci/test-wheel", "version": {"python": platform.python_version()}},
            },
        },
    }


if __name__ == "__main__":
    print(json.dumps(statement(Path(sys.argv[1])), indent=2))

"""Completes a bill of materials (CycloneDX) and writes the licences in it as a table; fails if a package has none.

Usage: licences.py BILL PYTHON VERSION TABLE, with the interpreter of the environment that the bill is of.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TITLE = """
import sys
from importlib.metadata import files
for file in files(sys.argv[1]) or ():
    if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
        print(next(line.strip() for line in file.read_text().splitlines() if line.strip()))
        break
"""


def named(component: dict[str, Any], python: str) -> str:
    """The licences that a package declares, or the title of its licence file, which the bill then has too."""
    if not component.get("licenses"):
        found = subprocess.run([python, "-c", TITLE, component["name"]], capture_output=True, text=True, check=True)
        if title := found.stdout.strip():
            component["licenses"] = [{"license": {"name": title}}]
    names = []
    for each in component.get("licenses", ()):
        known = each.get("license", {})
        names.append(each.get("expression") or known.get("id") or known["name"].rpartition(" :: ")[2])
    return ", ".join(dict.fromkeys(names))


def main() -> None:
    bill, python, version, table = sys.argv[1:]
    content = json.loads(Path(bill).read_text())
    content["metadata"]["component"]["version"] = version
    rows = {component["name"]: (component["version"], named(component, python)) for component in content["components"]}
    Path(bill).write_text(json.dumps(content, indent=2) + "\n")
    lines = [f"| {name} | {at} | {licence} |" for name, (at, licence) in sorted(rows.items())]
    Path(table).write_text("\n".join(["| package | version | licence |", "|---|---|---|", *lines]) + "\n")
    if without := [name for name, (_, licence) in rows.items() if not licence]:
        sys.exit(f"no licence is known for {', '.join(without)}")


if __name__ == "__main__":
    main()

"""`python -m dynamo.mocker` that announces another address than its own: `proxied_mocker.py ADDRESS FLAG…`."""

from __future__ import annotations

import sys

from dynamo.mocker.__main__ import main
from dynamo.runtime.plane.tcp import TcpPlane


class Announced(TcpPlane):
    address = sys.argv[1]


if __name__ == "__main__":
    TcpPlane.address = Announced.address  # type: ignore[method-assign, assignment]
    main(sys.argv[2:])

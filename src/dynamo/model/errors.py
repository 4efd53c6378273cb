"""What can be wrong with a model: always one line that says what was found and what to do about it."""

from __future__ import annotations

from dynamo.protocols.errors import StartError


class ModelError(StartError):
    """A model cannot be found, read or understood."""


class TemplateError(ModelError):
    """A chat template refused the messages it was given; the text is the template's own where it raised one."""

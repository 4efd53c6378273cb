"""Why a call of Kubernetes' API failed."""

from __future__ import annotations


class KubernetesError(Exception):
    """A call of the API failed."""


class ApiOutage(KubernetesError):
    """No usable answer came: whether something was changed is unknown."""


class ApiRefusal(KubernetesError):
    """The API server answered, and the answer is no: nothing was changed."""


class NotFound(ApiRefusal):
    """The object does not exist."""


class UnknownResource(ApiRefusal):
    """The server serves no such resource: its CustomResourceDefinition is missing."""


class Forbidden(ApiRefusal):
    """RBAC does not allow it."""


class Conflict(ApiRefusal):
    """The object exists already, was changed since it was read, or its fields belong to another manager."""


class Gone(ApiRefusal):
    """The version that a watch or a list wants to continue from is no longer kept."""

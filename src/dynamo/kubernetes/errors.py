"""Why a call of Kubernetes' API failed."""

from __future__ import annotations

import msgspec

from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.messages import APPLY, ApiCall, KubernetesStatus


class KubernetesError(Exception):
    """A call of the API failed."""


class ApiOutage(KubernetesError):
    """No usable answer came: whether something was changed is unknown."""


class ApiRefusal(KubernetesError):
    """The API server answered, and the answer is no: nothing was changed."""


class ObjectNotFound(ApiRefusal):
    """The object does not exist."""


class UnknownResource(ApiRefusal):
    """The server serves no such resource: its CustomResourceDefinition is missing."""


class Forbidden(ApiRefusal):
    """RBAC does not allow it."""


class Conflict(ApiRefusal):
    """The object exists already, was changed since it was read, or its fields belong to another manager."""


class Gone(ApiRefusal):
    """The version that a watch or a list wants to continue from is no longer kept."""


_LONGEST_MESSAGE = 300
_RETRIED = (408, 429)
"""The server is busy: the same call may succeed later."""


def error_of(status: int, data: bytes, call: ApiCall, access: ClusterAccess) -> KubernetesError:
    """What an answer other than a good one means, and what an administrator must change."""
    try:
        said = msgspec.json.decode(data, type=KubernetesStatus)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        said = KubernetesStatus(message=data.decode(errors="replace"))
    message = " ".join(said.message.split())[:_LONGEST_MESSAGE]
    server, resource, where = access.server, call.resource, f"in the namespace '{call.namespace}'"
    match status:
        case 401:
            return ApiRefusal(f"{server} does not accept the credentials of {access.origin}: {message}")
        case 403:
            path = "/".join(filter(None, [resource.plural, call.subresource]))
            return Forbidden(
                f"{server} forbids it: RBAC must allow the verb '{call.verb}' on '{path}' of the API group"
                f" '{resource.group}' {where}: {message}"
            )
        case 404 if said.reason == "NotFound" and call.name and "could not find" not in message:
            return ObjectNotFound(f"{server}: there is no {call} {where}")
        case 404:
            return UnknownResource(f"{server} knows no {resource.plural} of {resource.api_version}")
        case 409 if said.reason == "AlreadyExists":
            return Conflict(f"{resource} exists already: {message}")
        case 409 if call.content_type == APPLY:
            return Conflict(f"{call}: {message}")
        case 409:
            return Conflict(f"{call} was changed since it was read, so the decision is dropped")
        case 410:
            return Gone(f"{server} no longer keeps that version of {resource}: {message}")
        case 504 if "resource version" in message.lower():
            return Gone(f"{server} has not reached that version of {resource}: its store is an older one")
    refused = 400 <= status < 500 and status not in _RETRIED
    return (ApiRefusal if refused else ApiOutage)(f"{server} answers {status} for {call}: {message}")

"""What an administrator does with one worker: take it out of rotation, take it back, end it."""

from __future__ import annotations

import logging

from aiohttp import web
from msgspec import Struct

from dynamo.api.answers.http import json_response
from dynamo.api.route import HttpCall
from dynamo.frontend.routes.admin import ask_worker
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import HttpError
from dynamo.protocols.instance import Instance
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.membership import Member
from dynamo.runtime.names import CONTROL_ENDPOINT

log = logging.getLogger(__name__)

ACTIONS = ("drain", "resume", "remove")


class WorkerOrder(Struct, kw_only=True):
    """What a worker was told, and that it has agreed."""

    worker: str
    worker_id: str
    action: str
    status: str = "done"


async def order_worker(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    place = call.request.match_info
    word, action = place["worker"], place["action"]
    if action not in ACTIONS:
        raise HttpError(404, f"A worker can be told to drain, resume or remove, not '{action}'.")
    worker = _find(frontend, word)
    name = worker_name(worker.instance_id)
    try:
        await ask_worker(frontend, _control_of(frontend, worker), {"action": action})
    except TimeoutError:
        raise HttpError(504, f"The worker {name} has not answered; it may be stuck.") from None
    log.info("worker %s was told to %s by an administrator", name, action)
    return json_response(WorkerOrder(worker=name, worker_id=str(worker.instance_id), action=action))


def _find(frontend: Frontend, word: str) -> Member:
    """By its name, or its id as logs, metrics and records have it."""
    workers = frontend.models.workers()
    found = {
        member.instance_id: member
        for member in workers
        if word in (worker_name(member.instance_id), str(member.instance_id), f"{member.instance_id:x}")
    }
    if len(found) > 1:
        ids = " and ".join(str(id) for id in found)
        raise HttpError(409, f"Several workers have the name '{word}': say which one by its id, {ids}.")
    for member in found.values():
        return member
    names = sorted({worker_name(member.instance_id) for member in workers})
    there = f" There are: {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}." if names else ""
    raise HttpError(404, f"There is no worker '{word}'.{there}")


def _control_of(frontend: Frontend, worker: Member) -> Instance:
    for one in frontend.models.instances():
        if one.endpoint == CONTROL_ENDPOINT and one.instance_id == worker.instance_id:
            return one
    name = worker_name(worker.instance_id)
    raise HttpError(409, f"The worker {name} takes no orders: it is a program of its own. End its process instead.")

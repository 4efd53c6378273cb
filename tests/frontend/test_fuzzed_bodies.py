"""Mutated bodies over HTTP: every one is answered, none by an error of ours."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from dynamo.llm import ModelType
from support.bodies_mutated import PATHS, allowed, mutated_body, valid_body
from support.toys import Live, Scripted, embed_tokens, toy_card


async def test_bodies_that_are_nearly_right_are_answered_or_refused(live: Live, folder: Path) -> None:
    await live.serve(Scripted().generate, toy_card(folder, "toy", guided_decoding=True))
    await live.serve(embed_tokens, toy_card(folder, "embed", ModelType.Embedding), "toy.embed.generate")
    rng = random.Random(3)
    statuses: Counter[int] = Counter()
    for path in PATHS:
        async with live.http.post(path, json=valid_body(path)) as answer:
            assert answer.status == 200, (path, await answer.text())
        for _ in range(80):
            body = mutated_body(rng, path)
            async with live.http.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
                text = await answer.text()
                statuses[answer.status] += 1
                assert allowed(path, answer.status, text), (path, answer.status, body, text)
    assert statuses[200] > 20
    assert statuses[400] > 100
    assert (await live.get("/live"))["status"] == "live"

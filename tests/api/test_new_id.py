from __future__ import annotations

import uuid

from dynamo.api.headers import new_id


def test_a_new_id_is_a_random_uuid_as_the_library_writes_it() -> None:
    ids = [new_id() for _ in range(500)]
    read = [uuid.UUID(id) for id in ids]
    assert [str(id) for id in read] == ids
    assert {(id.version, id.variant) for id in read} == {(4, uuid.RFC_4122)}
    assert len(set(ids)) == len(ids)

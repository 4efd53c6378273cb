"""State that a release wrote is read by this version, and this version writes what that release reads.

`kept/` has what a server of each release wrote through its API: the database as SQL, and the files.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dynamo.serving.store.sqlite import SqliteRecords
from support.toys import Live, Scripted, toy_card, toy_folder

KEPT = Path(__file__).with_name("kept")
RELEASES = sorted(path.name for path in KEPT.iterdir())


def written_by(release: str, folder: Path) -> dict[str, str]:
    """The state folder of that release; returns the ids of what is in it."""
    kept = KEPT / release
    shutil.copytree(kept / "files", folder / "files")
    with closing(sqlite3.connect(folder / "state.sqlite")) as db:
        db.executescript((kept / "state.sql").read_text())
    ids: dict[str, str] = json.loads((kept / "ids.json").read_text())
    return ids


def schema(db: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_server_goes_on_with_the_state_of_an_earlier_release(release: str, tmp_path: Path) -> None:
    ids = written_by(release, tmp_path)
    engine = Scripted()
    async with Live(state_dir=str(tmp_path)) as live:
        await live.serve(engine.generate, toy_card(toy_folder(tmp_path / "model"), "tiny"))
        for id in ids["responses"]:
            assert (await live.get(f"/v1/responses/{id}"))["status"] == "completed"
        assert (await live.get(f"/v1/conversations/{ids['conversation']}"))["metadata"] == {"a": "b"}
        assert (await live.get(f"/v1/files/{ids['file']}"))["filename"] == "b.jsonl"
        assert (await live.get(f"/v1/batches/{ids['batch']}"))["status"] == "completed"
        async with live.http.get(f"/v1/files/{ids['output']}/content") as output:
            assert json.loads((await output.text()).splitlines()[0])["custom_id"] == "one"
        body = {"model": "tiny", "input": "And again", "previous_response_id": ids["responses"][1]}
        status, answer = await live.post("/v1/responses", body)
        assert (status, answer["status"]) == (200, "completed")
    prompt = engine.tokenizer.decode(engine.requests[-1]["token_ids"])
    assert "Remember me" in prompt
    assert "Again" in prompt


@pytest.mark.parametrize("release", RELEASES)
async def test_the_database_has_all_that_an_earlier_release_looks_for(release: str, tmp_path: Path) -> None:
    """That release refuses another number of the format, and needs its tables, triggers and indexes."""
    await SqliteRecords(tmp_path / "now.sqlite", {}).close()
    (tmp_path / "old").mkdir()
    written_by(release, tmp_path / "old")
    with (
        closing(sqlite3.connect(tmp_path / "now.sqlite")) as now,
        closing(sqlite3.connect(tmp_path / "old" / "state.sqlite")) as old,
    ):
        number = "PRAGMA user_version"
        assert now.execute(number).fetchone() == old.execute(number).fetchone()
        assert schema(old) <= schema(now)

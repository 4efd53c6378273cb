"""Does an engine's package have the names its module uses? Packages change faster than a range of versions can say."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Iterable
from functools import reduce

from dynamo.engines.base import EngineError

log = logging.getLogger(__name__)


def check_names(package: str, names: Iterable[str], known: tuple[str, ...]) -> str:
    """The installed version of `package`, which has all `names` (`module:attribute.attribute`).

    Raises ImportError if it is not installed, EngineError if a name is missing. A version that starts with none of
    `known` is logged, and tried.
    """
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"the package '{package}' is not installed") from None
    works = " and ".join(known)
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            reduce(getattr, attribute.split(".") if attribute else (), importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise EngineError(
                f"{package} {version} has no {name.replace(':', '.')} ({error}); known to work: {package} {works}"
            ) from error
    if not any(version == each or version.startswith(f"{each}.") for each in known):
        log.warning("%s %s was not tried with this build; known to work: %s", package, version, works)
    return version

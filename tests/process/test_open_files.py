from __future__ import annotations

import resource

from dynamo.process.open_files import raise_limit


def test_the_limit_of_open_files_is_raised_as_far_as_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_limit(0) == 256
        assert raise_limit(128) == 256
        assert raise_limit(512) == 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        if hard != resource.RLIM_INFINITY:
            assert raise_limit(hard + 1) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

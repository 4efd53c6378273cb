"""The names of workers follow from their ids."""

from __future__ import annotations

import re
import subprocess
import sys

from dynamo.protocols.worker_name import worker_name


def test_a_name_is_a_word_and_a_number_that_a_shell_takes_as_one_word() -> None:
    for id in (1, 2, 2**62, 2**63 - 1):
        assert re.fullmatch(r"[a-z]+-\d{5}", worker_name(id))


def test_ids_beside_each_other_have_names_of_their_own() -> None:
    assert len({worker_name(id) for id in range(1, 257)}) == 256


def test_another_process_says_the_same_name() -> None:
    code = "from dynamo.protocols.worker_name import worker_name; print(worker_name(2**62 + 1))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == worker_name(2**62 + 1)

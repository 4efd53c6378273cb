"""Triton's client for Python, over gRPC."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "tritonclient"

HEAD = """
import json, queue, sys
import numpy as np
import tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
def tensor(name, kind, value):
    made = triton.InferInput(name, [1], kind)
    made.set_data_from_numpy(np.array([value], dtype=object if kind == "BYTES" else bool))
    return made
prompt = tensor("text_input", "BYTES", b"The cat")
wanted = {"max_tokens": 8, "temperature": 0.0}
"""


def test_the_server_and_its_model_describe_themselves(client: Installed, bundled_grpc: str) -> None:
    heard = client.python(
        HEAD
        + """
model = client.get_model_metadata("tiny")
print(json.dumps([client.is_server_live(), client.is_server_ready(), client.is_model_ready("tiny"),
    [each.name for each in model.outputs], client.get_model_config("tiny").config.name]))
""",
        bundled_grpc,
    )
    assert heard == [True, True, True, ["text_output", "finish_reason"], "tiny"]


def test_a_prompt_is_answered_whole_and_streamed(client: Installed, bundled_grpc: str) -> None:
    whole, streamed, reason = client.python(
        HEAD
        + """
answer = client.infer("tiny", [prompt], parameters=wanted)
heard = queue.Queue()
client.start_stream(lambda result, error: heard.put((result, error)))
client.async_stream_infer("tiny", [prompt, tensor("streaming", "BOOL", True)], parameters=wanted,
    enable_empty_final_response=True)
pieces, final = [], False
while not final:
    result, error = heard.get(timeout=60)
    assert error is None, error
    text = result.as_numpy("text_output")
    pieces += [] if text is None else [piece.decode() for piece in text]
    final = result.get_response().parameters["triton_final_response"].bool_param
client.stop_stream()
print(json.dumps([answer.as_numpy("text_output")[0].decode(), "".join(pieces),
    answer.as_numpy("finish_reason")[0].decode()]))
""",
        bundled_grpc,
    )
    assert whole
    assert (streamed, reason) == (whole, "length")


def test_an_unknown_model_raises_the_clients_own_error(client: Installed, bundled_grpc: str) -> None:
    heard = client.python(
        HEAD
        + """
from tritonclient.utils import InferenceServerException
try:
    client.infer("nope", [prompt])
except InferenceServerException as error:
    print(json.dumps([error.status(), "nope" in error.message()]))
""",
        bundled_grpc,
    )
    assert heard == ["StatusCode.NOT_FOUND", True]

from __future__ import annotations

from dynamo.protocols.errors import InvalidArgument, InvalidRequest, from_wire, to_wire


def test_a_request_error_keeps_its_kind_over_the_wire() -> None:
    error = InvalidRequest("bad", "temperature", "invalid_value")
    assert isinstance(error, InvalidArgument)
    assert to_wire(error) == ("invalid_request", "bad", 400)
    again = from_wire(*to_wire(error))
    assert isinstance(again, InvalidRequest)
    assert (again.message, again.param, again.code) == ("bad", None, None)

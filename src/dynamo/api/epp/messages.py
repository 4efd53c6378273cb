"""The message classes of Envoy's external processing, from the compiled `ext_proc.proto`."""

from __future__ import annotations

from dynamo.api.protobuf import Message, message_classes

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEALTH_CHECK, HEALTH_WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"

_message = message_classes("dynamo.api.epp", "ext_proc.binpb", "dynamo.epp")

ProcessingRequest = _message("ProcessingRequest")
ProcessingResponse = _message("ProcessingResponse")
HeadersResponse = _message("HeadersResponse")
BodyResponse = _message("BodyResponse")
TrailersResponse = _message("TrailersResponse")
CommonResponse = _message("CommonResponse")
HeaderMutation = _message("HeaderMutation")
HeaderValueOption = _message("HeaderValueOption")
HeaderValue = _message("HeaderValue")
BodyMutation = _message("BodyMutation")
StreamedBodyResponse = _message("StreamedBodyResponse")
ImmediateResponse = _message("ImmediateResponse")
HttpStatus = _message("HttpStatus")
HealthCheckRequest = _message("HealthCheckRequest")
HealthCheckResponse = _message("HealthCheckResponse")

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, GRPC = range(6)
"""How Envoy sends a body, as its filter is configured."""
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_OVERWRITE = 2
_LARGEST_CHUNK = 62_000
"""Envoy refuses more than 64 KiB of a body in one message."""

# What is answered most often, made once.
HEADERS_GO_ON = ProcessingResponse(response_headers=HeadersResponse())
REQUEST_GOES_ON = ProcessingResponse(request_headers=HeadersResponse())
REQUEST_TRAILERS_GO_ON = ProcessingResponse(request_trailers=TrailersResponse())
RESPONSE_TRAILERS_GO_ON = ProcessingResponse(response_trailers=TrailersResponse())


def header_values(headers: Message) -> dict[str, str]:
    """By name; of a header that was sent several times, the last value."""
    return {each.key.lower(): (each.raw_value or each.value).decode("latin-1") for each in headers.headers.headers}


def mutation(values: dict[str, str], removed: tuple[str, ...]) -> Message:
    """Headers to set, whatever was there before, and headers to take out."""
    options = [
        HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode("latin-1")), append_action=_OVERWRITE)
        for key, value in values.items()
    ]
    return HeaderMutation(set_headers=options, remove_headers=removed)


def request_chunks(body: bytes | bytearray, *, end: bool) -> list[Message]:
    return [ProcessingResponse(request_body=each) for each in _chunks(body, end)]


def response_chunks(body: bytes | bytearray, *, end: bool) -> list[Message]:
    return [ProcessingResponse(response_body=each) for each in _chunks(body, end)]


def _chunks(body: bytes | bytearray, end: bool) -> list[Message]:
    found = []
    for start in range(0, len(body) or 1, _LARGEST_CHUNK):
        stop = start + _LARGEST_CHUNK
        part = StreamedBodyResponse(body=bytes(body[start:stop]), end_of_stream=end and stop >= len(body))
        found.append(BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=part))))
    return found


def immediate(status: int, body: bytes, headers: dict[str, str]) -> Message:
    """An answer in place of any server's."""
    response = ImmediateResponse(status=HttpStatus(code=status), headers=mutation(headers, ()), body=body)
    return ProcessingResponse(immediate_response=response)

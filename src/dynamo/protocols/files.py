"""/v1/files and /v1/batches: the requests and the objects."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from dynamo.protocols.fields import FilledString, Metadata

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class FileObject(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class DeletedFile(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class CreateBatchRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    input_file_id: FilledString
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: Any = None
    """Accepted without effect: results are kept until they are deleted or the space is full."""


class BatchError(Struct, kw_only=True):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: BatchEndpoint
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    expires_at: int | None = None
    expired_at: int | None = None
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ("failed", "completed", "expired", "cancelled")

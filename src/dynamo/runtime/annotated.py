"""The envelope around each streamed item: data, or an event with comments, or an error."""

from __future__ import annotations

from typing import Any

from dynamo.protocols.errors import DynamoException, Unknown

TAG = "_dynamo_annotated"
_FIELDS = {"data", "id", "event", "comment", "error", TAG}


class Annotated:
    __slots__ = ("_comments", "_data", "_event", "_id", "error", "exception")

    def __init__(
        self,
        data: Any = None,
        *,
        id: str | None = None,
        event: str | None = None,
        comments: list[str] | None = None,
        error: str | None = None,
        exception: DynamoException | None = None,
    ) -> None:
        self._data = data
        self._id = id
        self._event = event
        self._comments = comments or None
        self.error = error
        self.exception = exception

    @classmethod
    def of(cls, value: Any) -> Annotated:
        """A handler's item: plain data, unless it is an envelope: tagged, or a dict with an event, comment or error."""
        if (
            type(value) is dict
            and ("event" in value or "comment" in value or "error" in value or TAG in value)
            and value.keys() <= _FIELDS
        ):
            comment = value.get("comment")
            return cls(
                value.get("data"),
                id=value.get("id"),
                event=value.get("event"),
                comments=[comment] if isinstance(comment, str) else comment,
                error=value.get("error"),
            )
        return cls(value)

    @classmethod
    def failed(cls, error: DynamoException) -> Annotated:
        return cls(event="error", comments=[error.message], error=error.message, exception=error)

    def data(self) -> Any:
        return self._data

    def id(self) -> str | None:
        return self._id

    def event(self) -> str | None:
        return self._event

    def comments(self) -> list[str] | None:
        return self._comments

    def is_error(self) -> bool:
        return self.error is not None or self._event == "error"

    def is_bare_event(self) -> bool:
        """There is an event or a comment, and no data."""
        return self._data is None and (self._event is not None or self._comments is not None)

    def failure(self) -> DynamoException:
        """What to raise for an envelope that is an error."""
        return self.exception or Unknown(self.error or "; ".join(self._comments or ["the worker sent an error"]))

    def __repr__(self) -> str:
        return f"Annotated(data={self._data!r}, event={self._event!r}, comments={self._comments!r})"

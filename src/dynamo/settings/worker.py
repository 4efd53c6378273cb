"""Settings that several kinds of workers share."""

from typing import Annotated

from msgspec import Meta

from dynamo.settings.setting import Setting

MigrationLimit = Annotated[
    int,
    Meta(ge=0, le=1023),
    Setting("--migration-limit", metavar="N", help="times a request may move to another worker", group="requests"),
]
ModelName = Annotated[
    str | None,
    Setting("--model-name", metavar="NAME", help="name to serve the model as", group="model", default="repo or file"),
]

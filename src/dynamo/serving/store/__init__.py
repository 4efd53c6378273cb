"""What the server keeps between requests: records and files."""

from dynamo.serving.store.files import Files
from dynamo.serving.store.records import Limits, Records

__all__ = ["Files", "Limits", "Records"]

"""What the server keeps between requests: responses, conversations, files and batches."""

from dynamo.serving.store.conversations import Conversations
from dynamo.serving.store.files import Files
from dynamo.serving.store.records import Limits, Records
from dynamo.serving.store.responses import ResponseStore, Turn

__all__ = ["Conversations", "Files", "Limits", "Records", "ResponseStore", "Turn"]

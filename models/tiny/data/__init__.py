"""Training data: generated questions by topic, and conversations built from them."""

from .conversation import TOPICS, conversation
from .dialogue import Dialogue
from .exam import Item, exam

__all__ = ["TOPICS", "Dialogue", "Item", "conversation", "exam"]

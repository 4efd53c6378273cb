"""What the model learns: every topic, and the conversations made of them."""

from .conversation import TOPICS, conversation
from .dialogue import Dialogue
from .exam import Item, exam

__all__ = ["TOPICS", "Dialogue", "Item", "conversation", "exam"]

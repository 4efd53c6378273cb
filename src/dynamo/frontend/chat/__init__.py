"""A chat on a terminal, with whichever models this process knows."""

from dynamo.frontend.chat.terminal import TerminalChat, history_path

__all__ = ["TerminalChat", "history_path"]

"""Anthropic's Messages, served as chats."""

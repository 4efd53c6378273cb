"""OpenAI's Responses and Conversations, served as chats."""

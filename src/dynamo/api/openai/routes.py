"""The routes of OpenAI's API, except its Responses, and of vLLM's for tokens."""

from __future__ import annotations

from dynamo.api.openai import files, models, tokens
from dynamo.api.openai.inference import chat, completions, embedding_line, embeddings, text_line
from dynamo.api.route import STORED_ERRORS, WRITTEN_ERRORS, Api, HttpRoute, inference
from dynamo.protocols.answers import ChatCompletion, Model, ModelList, ModelReadiness, Page, TextCompletion
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingList, EmbeddingRequest
from dynamo.protocols.files import BatchObject, CreateBatchRequest, DeletedFile, FileObject

OPENAI_API = Api(
    (
        inference(
            "/v1/chat/completions", chat, ChatRequest, ChatCompletion, "Continue a conversation",
            endpoint="chat_completions", limits=("max_completion_tokens", "max_tokens"), batched=text_line,
            streams=True,
        ),
        inference(
            "/v1/completions", completions, CompletionRequest, TextCompletion, "Continue a text",
            endpoint="completions", limits=("max_tokens",), batched=text_line, streams=True,
        ),
        inference(
            "/v1/embeddings", embeddings, EmbeddingRequest, EmbeddingList, "Embed texts",
            endpoint="embeddings", embeds=True, batched=embedding_line,
        ),
        HttpRoute(
            "POST", "/v1/files", files.create_file,
            summary="Upload a file (multipart/form-data: file, purpose)", answer=FileObject, statuses=WRITTEN_ERRORS,
        ),
        HttpRoute("GET", "/v1/files", files.list_files, summary="List the files", answer=Page, statuses=(400, 401)),
        HttpRoute(
            "GET", "/v1/files/{id}", files.show_file, summary="One file", answer=FileObject, statuses=STORED_ERRORS
        ),
        HttpRoute(
            "DELETE", "/v1/files/{id}", files.delete_file,
            summary="Delete a file", answer=DeletedFile, statuses=STORED_ERRORS,
        ),
        HttpRoute("GET", "/v1/files/{id}/content", files.file_content),
        HttpRoute(
            "POST", "/v1/batches", files.create_batch, CreateBatchRequest,
            summary="Answer the requests of a file", answer=BatchObject, statuses=WRITTEN_ERRORS,
        ),
        HttpRoute(
            "GET", "/v1/batches", files.list_batches, summary="List the batches", answer=Page, statuses=(400, 401)
        ),
        HttpRoute(
            "GET", "/v1/batches/{id}", files.show_batch,
            summary="One batch", answer=BatchObject, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "POST", "/v1/batches/{id}/cancel", files.cancel_batch,
            summary="Cancel a batch", answer=BatchObject, statuses=STORED_ERRORS,
        ),
        inference(
            "/tokenize", tokens.tokenize, tokens.TokenizeRequest, tokens.TokenizeAnswer,
            "The tokens of a text or a chat",
        ),
        inference(
            "/detokenize", tokens.detokenize, tokens.DetokenizeRequest, tokens.DetokenizeAnswer, "The text of tokens"
        ),
        HttpRoute("GET", "/version", tokens.version, summary="The version of this server"),
        HttpRoute(
            "GET", "/v1/models", models.list_models, summary="List the models", answer=ModelList, statuses=(401,)
        ),
        HttpRoute(
            "GET", "/v1/models/{id:.+}/ready", models.model_readiness,
            summary="Whether a model can be used now", answer=ModelReadiness, statuses=(401, 404),
        ),
        HttpRoute(
            "GET", "/v1/models/{id:.+}", models.show_model, summary="One model", answer=Model, statuses=(401, 404)
        ),
    )
)  # fmt: skip

#!/bin/sh
# A server with its engine in one process, and the guide's requests to it.
#
#   examples/http.sh [MODEL]                  OUT=echo_full PORT=8081 examples/http.sh
set -eu
OUT=${OUT:-mistralrs}
PORT=${PORT:-8080}

dynamo-run in=http "out=$OUT" --http-port "$PORT" --model-name example "$@" &
server=$!
trap 'kill $server 2>/dev/null || true; wait' EXIT
trap 'exit 1' INT TERM
until curl -s "http://127.0.0.1:$PORT/v1/models" | grep -q '"example"'; do sleep 0.2; done

question='"model": "example", "max_completion_tokens": 200,
          "messages": [{"role": "user", "content": "What is the capital of France?"}]'
curl -s "http://127.0.0.1:$PORT/v1/models" && echo
curl -s "http://127.0.0.1:$PORT/v1/chat/completions" -H 'Content-Type: application/json' -d "{$question}" && echo
curl -sN "http://127.0.0.1:$PORT/v1/chat/completions" -H 'Content-Type: application/json' \
    -d "{$question, \"stream\": true}"

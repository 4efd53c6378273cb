#!/bin/sh
# A server and two workers that discover each other on one machine. For several machines, start etcd, set
# ETCD_ENDPOINTS=http://HOST:2379 and one DYN_PLANE_TOKEN on each, and run each command on its machine.
#
#   examples/distributed.sh [MODEL]           OUT=echo_full PORT=8081 examples/distributed.sh
set -eu
OUT=${OUT:-mistralrs}
PORT=${PORT:-8080}

dynamo-run in=http out=dyn --http-port "$PORT" &
server=$!
dynamo-run in=dyn://example.backend.generate "out=$OUT" --model-name example "$@" &
first=$!
dynamo-run in=dyn://example.backend.generate "out=$OUT" --model-name example "$@" &
second=$!
trap 'kill $server $first $second 2>/dev/null || true; wait' EXIT
trap 'exit 1' INT TERM

ask() {
    curl -s "http://127.0.0.1:$PORT/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"model": "example", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
}

workers() {
    curl -s "http://127.0.0.1:$PORT/health" | grep -o '"instance_id"' | wc -l
}

until [ "$(workers)" -eq 2 ]; do sleep 0.2; done
echo "with both workers:" && ask && echo
kill $first && wait $first
until [ "$(workers)" -eq 1 ]; do sleep 0.2; done
echo "after one has stopped:" && ask && echo

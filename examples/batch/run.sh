#!/bin/sh
# Every prompt of a file, answered into output.jsonl beside it. Interrupted, the same command goes on.
#
#   examples/batch/run.sh [MODEL]             OUT=echo_full examples/batch/run.sh
set -eu
here=$(dirname "$0")
dynamo-run "in=batch:$here/prompts.jsonl" "out=${OUT:-mistralrs}" "$@"
cat "$here/output.jsonl"

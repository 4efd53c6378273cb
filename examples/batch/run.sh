#!/bin/sh
# Answers every prompt of a file into output.jsonl next to it. After an interruption, run it again to continue.
#
#   examples/batch/run.sh [MODEL]             OUT=echo_full examples/batch/run.sh
set -eu
here=$(dirname "$0")
dynamo-run "in=batch:$here/prompts.jsonl" "out=${OUT:-mistralrs}" "$@"
cat "$here/output.jsonl"

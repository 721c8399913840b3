#!/usr/bin/env bash
# Fuzzes one target for FUZZ_SECONDS (6), starting from a copy of its corpus.
#
#   scripts/fuzz.sh TARGET CORPUS WORK_DIR
set -euo pipefail
target=$1 corpus=$2 work=$3
seconds=${FUZZ_SECONDS:-6}

mkdir -p "$work/corpus" "$work/crashes"
[ ! -d "$corpus" ] || cp -r "$corpus/." "$work/corpus/"
rm -f "$work"/crashes/*

if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$work/crashes/" "$work/corpus" 2>"$work/log"; then
  grep -E '^(stat::number_of_executed_units|Done )' "$work/log" || true
  exit 0
fi

grep -v '^#' "$work/log" | tail -n 100
for input in "$work"/crashes/*; do
  [ -f "$input" ] || continue
  echo "crashing input: $input"
  [ "$(stat -c %s "$input")" -gt 4096 ] || { echo "in base64:"; base64 "$input"; }
  echo "run it again with: $target $input"
  echo "once fixed, keep it as a test: cp $input $corpus/"
done
exit 1

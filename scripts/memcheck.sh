#!/usr/bin/env bash
# Looks for leaks and wrong accesses with valgrind, over 10,000 decoded tokens and 200 sessions of
# the tiny models (the suite Flat of test_engine), and over the command line answering a question.
# Then records the peak of the heap with massif. Valgrind shows the program a processor without
# AVX-512, so the code for AVX2 runs.
#
#   scripts/memcheck.sh [BUILD_DIR] [MODEL]
#
# BUILD_DIR is build/release unless given; MODEL is what `lca run` opens (left out: not run). The
# last line is the verdict; the exit code is 0 if nothing is lost and nothing wrong was read.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release} model=${2:-}
command -v valgrind >/dev/null || { echo "SKIPPED: valgrind not found (apt-get install valgrind)"; exit 77; }
[ -x "$build/bin/test_engine" ] || { echo "memcheck: $build/bin/test_engine is missing: build it first"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export LCA_FLAT_THREADS=1

# The test program counts allocations with a malloc of its own, which valgrind must replace too.
grind=(nice valgrind --soname-synonyms=somalloc=NONE)

number() { grep -oP "$1: \K[0-9,]+" "$2" | tail -1 || true; }

# memcheck NAME COMMAND…
memcheck() {
  local name=$1 log=$work/$1
  shift
  if ! "${grind[@]}" --leak-check=full --errors-for-leak-kinds=definite,indirect,possible \
      --error-exitcode=9 --log-file="$log" "$@" >"$log.out" 2>&1; then
    failed=1
    grep -E 'FAILED|error' "$log.out" | head -5 || true
    tail -40 "$log"
  fi
  local lost
  lost=$(number 'definitely lost' "$log")
  echo "$name: definitely lost ${lost:-0} bytes, still reachable $(number 'still reachable' "$log")" \
       "bytes, errors $(number 'ERROR SUMMARY' "$log")"
  [ -n "$lost" ] || grep -q 'no leaks are possible' "$log" || failed=1
}

# peak NAME COMMAND…
peak() {
  local name=$1 log=$work/$1.massif
  shift
  "${grind[@]}" --tool=massif --massif-out-file="$log" "$@" >/dev/null 2>&1 || failed=1
  echo "$name: heap peak $(grep -oP 'mem_heap_B=\K[0-9]+' "$log" | sort -n | tail -1) bytes," \
       "at the end $(grep -oP 'mem_heap_B=\K[0-9]+' "$log" | tail -1)"
}

engine=("$build/bin/test_engine" --gtest_brief=1)
for tiny in ${MEMCHECK_MODELS:-llama deepseek_v2}; do
  memcheck "10000_tokens_$tiny" "${engine[@]}" "--gtest_filter=*Flat.TenThousand*/$tiny"
  memcheck "200_sessions_$tiny" "${engine[@]}" "--gtest_filter=*Flat.TwoHundred*/$tiny"
  peak "10000_tokens_$tiny" "${engine[@]}" "--gtest_filter=*Flat.TenThousand*/$tiny"
  peak "200_sessions_$tiny" "${engine[@]}" "--gtest_filter=*Flat.TwoHundred*/$tiny"
done
if [ -n "$model" ]; then
  memcheck run "$build/bin/lca" run "$model" -p "hello" -n 4 --threads 1
fi
[ "$failed" -eq 0 ] && echo "memcheck: nothing lost" || echo "memcheck: FAILED"
exit "$failed"

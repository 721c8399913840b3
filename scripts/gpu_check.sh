#!/usr/bin/env bash
# Runs the CUDA tests on this machine's GPU, then small ones of every kernel under compute-sanitizer:
# memcheck (wrong accesses to any memory) and racecheck (threads of a block that use shared memory
# without waiting for each other). Both make kernels some fifty times slower, so the tests they get
# are chosen by hand. racecheck looks at our kernels alone, and gets no model with MLA: some kernels of
# cuBLASLt fail under it by themselves ("failed to handle a hardware exception"), even if none is
# instrumented, as all of CudaProduct shows.
#
#   scripts/gpu_check.sh [TEST_PROGRAM]
#
# TEST_PROGRAM is build/cuda/bin/test_cuda unless given. GPU_CHECK_SECONDS (180) bounds each tool.
# One line for each step, the last is the verdict; the exit code is 0 if nothing is wrong, 77 with a
# line with the reason where there is no GPU or no compute-sanitizer (tests run without the latter).
set -euo pipefail
program=${1:-$(dirname "$0")/../build/cuda/bin/test_cuda}
seconds=${GPU_CHECK_SECONDS:-180}
[ -x "$program" ] || { echo "gpu_check: $program is missing: build it first (ninja -C build/cuda test_cuda)"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# A line of GoogleTest's summary as a number; 0 where it is not there.
count() { grep -oP "^\[  $1 *\] \K[0-9]+(?= tests?[.,])" "$2" | tail -1 || echo 0; }

# The smallest test, for its reason to be skipped.
if "$program" --gtest_filter='CudaGroups.*' >"$work/probe" 2>&1 && grep -q SKIPPED "$work/probe"; then
  echo "SKIPPED: $(grep -A1 -m1 ': Skipped$' "$work/probe" | tail -1)"
  exit 77
fi

# step NAME COMMAND…: runs it, and tells what came of it
step() {
  local name=$1 log=$work/$1 began=$SECONDS code=0
  shift
  "$@" >"$log" 2>&1 || code=$?
  local line
  line="$name: $(count PASSED "$log") tests passed in $((SECONDS - began)) s"
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    line="$name: FAILED, not done after $seconds s"
  elif [ "$code" -ne 0 ]; then
    line="$name: FAILED with exit code $code, $(count FAILED "$log") tests failed"
  elif [ "$(count PASSED "$log")" -eq 0 ]; then
    line="$name: FAILED, no test ran"
    code=1
  fi
  echo "$line$(grep -oP '={9} \K(ERROR|RACECHECK) SUMMARY:.*' "$log" | tail -1 | sed 's/^/; /' || true)"
  [ "$code" -eq 0 ] && return
  failed=1
  grep -vE '^\[ *(RUN|OK|-+) *\]' "$log" | head -60
}

step tests "$program" --gtest_brief=0

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -z "$sanitizer" ]; then
  [ "$failed" -eq 0 ] || { echo "gpu_check: FAILED"; exit 1; }
  echo "SKIPPED: compute-sanitizer not found (it comes with the CUDA toolkit); the tests passed without it"
  exit 77
fi

# sanitize TOOL TEST…
sanitize() {
  local tool=$1 filter ours=()
  shift
  filter=$(IFS=: && echo "$*")
  [ "$tool" = memcheck ] || ours=(--kernel-name kns=lca)
  step "$tool" timeout -k 10 "$seconds" "$sanitizer" --tool "$tool" "${ours[@]}" --error-exitcode 9 \
    --print-limit 20 "$program" "--gtest_filter=$filter"
}

# Every kernel once: both kinds of prefill at all their widths, condensing in registers and plain,
# means, pages of every type, decode with and without clusters, and a whole layer.
shared=(
  CudaPrefill.KeepsPackedDocumentsApart
  CudaPrefill.AddsTheBiasOfEachRepresentative
  CudaCondense.WideMlaCoversEveryPool
  CudaCondense.EqualAndHugeScoresStayNumbersAndTiesGoToTheFirst
  CudaQueryMeans.RopeRotatesQueriesInPlaceAndMeansAreOfRotatedOnes
  CudaGroups.PagesGiveBackWhatWasAppendedWithinTheirPrecision
  'Shapes/CudaBackwardBlocks.*'
  'CudaDecode.TwoStepsOfEveryPortableKernel/*'
  'CudaDecode.FewBlocksAlone/*'
  'CudaDecode.FewBlocksInPairs/*'
  'CudaDecode.FewBlocksInLargeClusters/*'
)
sanitize memcheck "${shared[@]}" CudaPrefill.ReadsViewsIntoLargerTensors \
  CudaQueryMeans.AbsorbedMeansMatchASumOverHeads \
  'CudaLayer.GoesOnWithAPromptAfterDecoding/*' CudaExchange.WhatDoesNotFitIsRefused \
  CudaCalls.ReplaysEqualStepsOneByOneBitForBit 'Shapes/CudaCachesOf.AStepThatIsRolledBackChangesNothing/*' \
  'All/CudaModelRound*' 'CudaExperts.ManyExperts*' 'CudaThin.ARow*' 'CudaRoute.Sorts*'
sanitize racecheck "${shared[@]}" 'CudaRows.*' 'CudaThin.ARow*' 'CudaRoute.*' \
  'All/CudaModelRound.*/llama' 'All/CudaModelRound.*/llama_fp8' 'All/CudaModelRound.*/qwen2'

[ "$failed" -eq 0 ] && echo "gpu_check: nothing wrong" || echo "gpu_check: FAILED"
exit "$failed"

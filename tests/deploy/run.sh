#!/usr/bin/env bash
# Two replicas on one machine behind Ray Serve and behind sglang-router, in an environment of their own (600 MB, once), and
# one behind nginx.
#
#   tests/deploy/run.sh [ray] [scaling] [sglang] [nginx] [-- flags of the checks, such as --conversations 24 --keep]
#
#   LCA=build/release/bin/lca  MODEL=smollm2
#
# Without PyPI, program or model it says why and exits with 77.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "SKIPPED: $*"; exit 77; }

lca=${LCA:-build/release/bin/lca} model=${MODEL:-smollm2}
[ -x "$lca" ] || skip "$lca not found; run make build"
"$lca" inspect "$model" >/dev/null 2>&1 || skip "model $model not found; run make model"

checks=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do checks+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#checks[@]} -gt 0 ] || checks=(ray scaling sglang nginx)

venv=build/deploy-venv
wanted=$(cat deploy/ray/requirements.txt deploy/sglang-router/requirements.txt)
if [ "$(cat "$venv/wanted" 2>/dev/null)" != "$wanted" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r deploy/ray/requirements.txt \
    -r deploy/sglang-router/requirements.txt || skip "Ray and sglang-router cannot be installed (no PyPI?)"
  echo "$wanted" >"$venv/wanted"
fi

failed=0
for check in "${checks[@]}"; do
  echo "== $check"
  status=0
  "$venv/bin/python" -B "tests/deploy/check_$check.py" "$lca" "$model" "$@" || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || failed=1
done
exit "$failed"

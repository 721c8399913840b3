#!/usr/bin/env bash
# Format check, then clang-tidy over the library and the program; any finding is an error.
#
#   scripts/lint.sh [FILE…]      (no argument: every .cpp of src and apps)
#
# Files are taken one by one, so that each must include what it uses; build/lint holds their commands.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || scripts/format.sh --check
command -v clang-tidy >/dev/null || { echo "clang-tidy not found; run scripts/setup.sh" >&2; exit 1; }
[ $# -gt 0 ] || mapfile -t files < <(find src apps -name '*.cpp' | sort)
[ $# -eq 0 ] || files=("$@")

mkdir -p build
cmake --preset release -B build/lint -D LCA_UNITY=OFF >build/configure.log || { cat build/configure.log; exit 1; }
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy --quiet -p build/lint --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument \
  2>&1 | { grep -vE '^[0-9]+ warnings? generated\.$' || true; }  # those of others' headers
echo "lint: ${#files[@]} files are clean"

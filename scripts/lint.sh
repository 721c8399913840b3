#!/usr/bin/env bash
# Format check, then clang-tidy over the library and the program; any finding is an error.
#
#   scripts/lint.sh [FILE…]      (no argument: every .cpp of src and apps)
#
# Needs a configured build/release for its compile commands.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || scripts/format.sh --check
command -v clang-tidy >/dev/null || { echo "clang-tidy not found; run scripts/setup.sh" >&2; exit 1; }
[ $# -gt 0 ] || mapfile -t files < <(find src apps -name '*.cpp' | sort)
[ $# -eq 0 ] || files=("$@")

printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy --quiet -p build/release --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument \
  2>&1 | { grep -vE '^[0-9]+ warnings? generated\.$' || true; }  # those of others' headers
echo "lint: ${#files[@]} files are clean"

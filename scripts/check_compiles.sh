#!/usr/bin/env bash
# Compiles the SIMD sources for targets this machine's build leaves out.
#
#   scripts/check_compiles.sh neon|scalar BUILD_DIR
set -euo pipefail
target=$1 out=$2/compiles_for_$1
cd "$(dirname "$0")/.."

case $target in
  neon)
    compiler=aarch64-linux-gnu-g++ flags=
    [ "$(uname -m)" != aarch64 ] || compiler=g++
    ;;
  scalar) compiler=g++ flags=-DHWY_COMPILE_ONLY_SCALAR ;;
  *) echo "usage: $0 neon|scalar BUILD_DIR" >&2; exit 2 ;;
esac
command -v $compiler >/dev/null || { echo "SKIPPED: $compiler not found"; exit 77; }
launcher=$(command -v ccache || true)

# Those that Highway or a preprocessor's test makes differ from target to target.
mapfile -t files < <(grep -rlE 'hwy/|simd_targets|HWY_|__x86_64__|__aarch64__|__AVX512' --include='*.cpp' src)
mkdir -p "$out"
# Objects, not just syntax: some target mismatches only show when code is generated.
export compiler flags launcher out
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P 2 bash -c '
  $launcher $compiler -std=c++20 -O1 -Wall -Wextra -Wno-psabi $flags -Iinclude -Isrc \
    -c "$0" -o "$out/${0//\//_}.o" && echo "compiled $0" || { echo "FAILED $0"; exit 1; }'

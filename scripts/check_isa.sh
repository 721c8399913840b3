#!/usr/bin/env bash
# A source compiled for a newer processor must not define functions that other sources may define
# too (inline functions, templates): the linker keeps one copy, and the wrong one would crash older
# processors.
#
#   scripts/check_isa.sh LIBRARY OBJECT
set -euo pipefail
command -v nm >/dev/null || { echo "SKIPPED: nm not found"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && ar x "$1" "$2")
shared=$(nm -C --defined-only "$folder/$2" | grep -E '^[0-9a-f]* [WVu] ' | grep -vF ' DW.ref.' || true)
[ -z "$shared" ] && exit 0
echo "$2 defines functions that other sources may share; make them local to the file:"
echo "$shared"
exit 1

#!/usr/bin/env bash
# Takes prepared training to a machine with a GPU and no network: files small enough for any upload, and back into place.
#
#   eval/carry.sh pack OUT FOLDER BUILD [MIB]   here: OUT/part-00, part-01, … of at most MIB (50) each
#   eval/carry.sh unpack PARTS WHERE            there, in the same commit's clone; then: . WHERE/env
#
# FOLDER is what eval/text/prepare.py --steps texts made, BUILD a build folder of the preset cuda with
# -DLCA_CUDA_PORTABLE=90. The machine there needs nvcc's run-time libraries, a compiler, CMake, nanobind, torch,
# transformers and accelerate; peft and wonderwords are taken along, and the libraries that the program needs.
# Afterwards FOLDER/replies.jsonl and the mixtures are made there (eval/text/prepare.py WHERE/data --steps training).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "carry: $*" >&2; exit 1; }

pack() {
  local out=$1 data=$2 build=$3 size=${4:-50}
  local program=$build/bin/lca
  for each in "$data/packed/manifest.json" "$program"; do [ -e "$each" ] || fail "$each is not there"; done
  mkdir -p "$out"
  draft=$(mktemp -d "$out/.draft.XXXXXX")
  trap 'rm -rf "$draft"' EXIT
  mkdir -p "$draft"/{lib,wheels,home,data}
  cp "$program" "$draft/lib/lca"
  local library
  library=$(find "$build" -name liblca.so -not -path '*/CMakeFiles/*' | head -n 1)
  [ -n "$library" ] || fail "$build has no liblca.so; build the target lca-shared (-DLCA_PYTHON=ON)"
  cp "$library" "$draft/lib/"
  strip "$draft/lib/lca" "$draft/lib/liblca.so"
  # What they need, without what every Linux and every CUDA machine has.
  ldd "$program" "$library" | awk '$3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libnvrtc|liblca)\.so' |
    xargs -r -I{} cp -L {} "$draft/lib/"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$draft/wheels" peft wonderwords
  "$root/scripts/model.py" --to "$draft/home" >/dev/null
  local name
  for name in packed packed-small packed-heldout windows data/general data/held-out prompts.jsonl replies.jsonl; do
    [ -e "$data/$name" ] || continue
    mkdir -p "$draft/data/$(dirname "$name")"
    cp -r "$data/$name" "$draft/data/$name"
  done
  rm -f "$out"/part-*
  # Parts come after one another; each is checked there.
  tar -C "$draft" -cf - . | xz -T0 -8 | split -d -a 2 -b "${size}M" - "$out/part-"
  (cd "$out" && sha256sum part-* > sums)
  du -h "$out"/part-*
}

unpack() {
  local parts where
  parts=$(cd "$1" && pwd) && mkdir -p "$2" && where=$(cd "$2" && pwd)
  (cd "$parts" && sha256sum --quiet -c sums) || fail "parts are missing or damaged"
  cat "$parts"/part-* | xz -T0 -dc | tar -C "$where" -xf -
  local wheel
  for wheel in "$where"/wheels/*; do python3 -m zipfile -e "$wheel" "$where/site"; done
  chmod +x "$where/lib/lca"
  cat > "$where/env" <<ENV
export PATH="$where/lib:\$PATH" LD_LIBRARY_PATH="$where/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export PYTHONPATH="$where/bind/python:$where/site\${PYTHONPATH:+:\$PYTHONPATH}" LCA_HOME="$where/home"
ENV
  cmake -S "$root/python" -B "$where/bind" -DLCA_LIBRARY="$where/lib/liblca.so" -DCMAKE_BUILD_TYPE=Release >"$where/bind.log" 2>&1 &&
    cmake --build "$where/bind" -j >>"$where/bind.log" 2>&1 || fail "the Python package was not built; see $where/bind.log"
  # shellcheck disable=SC1091
  (. "$where/env" && python3 -c 'import torch, lca; print("lca", lca.__version__, "is in place, GPU:", torch.cuda.is_available())')
}

case ${1:-} in
  pack) [ $# -ge 4 ] || usage; shift; pack "$@" ;;
  unpack) [ $# -eq 3 ] || usage; shift; unpack "$@" ;;
  *) usage ;;
esac

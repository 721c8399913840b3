#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages the project needs; does nothing when they are there.
#
#   scripts/setup.sh [build] [test] [lint] [python]      (no argument: all of them)
#
# `build` is what the library and the program need; not getting it is an error. The others add
# tools; a check whose tool is missing is skipped, visibly.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

build=(make cmake ninja-build g++ python3 python3-pip libhwy-dev libdnnl-dev libpcre2-dev
       libutf8proc-dev libfmt-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libgtest-dev
       libgmock-dev libboost1.81-dev libspdlog-dev)
# libclang-rt-dev holds libFuzzer; older systems have it inside clang and lack the package.
# Chromium is for the server's page; --no-install-recommends would leave it without a font.
test=(ccache clang libclang-rt-dev libomp-dev clang-format g++-aarch64-linux-gnu qemu-user googletest
      chromium chromium-driver fonts-dejavu-core)
lint=(clang libomp-dev clang-format clang-tidy)
python=(python3-dev python3-venv)  # of the system's own Python; others bring theirs along

needed=("${build[@]}") wanted=()
[ $# -gt 0 ] || set -- build test lint python
for group in "$@"; do
  case $group in
    build) ;;
    test) wanted+=("${test[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    *) echo "setup: unknown group '$group'; the groups are build, test, lint and python" >&2; exit 2 ;;
  esac
done

say() { echo "setup: $*" >&2; }
lines() { [ $# -eq 0 ] || printf '%s\n' "$@" | sort -u; }

# Where packages cannot be installed the tools may still be there, from elsewhere. CMake will name
# the libraries that are not.
manage_without() {
  local tool absent=()
  for tool in cmake ninja c++ python3; do
    command -v "$tool" >/dev/null || absent+=("$tool")
  done
  say "$1; needed are, by their Debian names:" $2
  [ ${#absent[@]} -eq 0 ] || { say "not found: ${absent[*]}"; exit 1; }
  exit 0
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  manage_without "no apt on this system" "$(lines "${needed[@]}" "${wanted[@]}" | tr '\n' ' ')"

missing() {
  comm -23 <(lines "$@") \
    <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u)
}
mapfile -t needed < <(missing "${needed[@]}")
mapfile -t wanted < <(missing "${wanted[@]}")

# Tools that could not be had are not asked for again on the same day.
given_up=build/.setup-without
if [ -n "$(find "$given_up" -mtime -1 2>/dev/null)" ]; then
  mapfile -t wanted < <(comm -23 <(lines "${wanted[@]}") "$given_up")
fi
[ $((${#needed[@]} + ${#wanted[@]})) -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    manage_without "packages are missing, and only root or sudo can install them" \
      "${needed[*]} ${wanted[*]}"
  root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >"$log" 2>&1
}
install() { apt install -y --no-install-recommends "$@"; }
# Those of the packages that this release of the system has.
known() {
  local package
  for package; do
    [[ $(apt-cache policy "$package") != *"Candidate: "[^\(]* ]] || echo "$package"
  done
}

say "installing" "${needed[@]}" "${wanted[@]}"
mapfile -t have < <(known "${wanted[@]}")
if [ ${#have[@]} -lt ${#wanted[@]} ] || ! install "${needed[@]}" "${have[@]}"; then
  apt update || true  # the lists were absent or old
  mapfile -t have < <(known "${wanted[@]}")
  if ! install "${needed[@]}" "${have[@]}" && ! install "${needed[@]}"; then
    tail -n 20 "$log" >&2
    say "could not install ${needed[*]}"
    exit 1
  fi
fi

mapfile -t wanted < <(missing "${wanted[@]}")
if [ ${#wanted[@]} -gt 0 ]; then
  say "going on without ${wanted[*]}"
  mkdir -p build
  lines "${wanted[@]}" >"$given_up"
fi

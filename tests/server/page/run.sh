#!/usr/bin/env bash
# Runs the page's tests in Chromium, in a virtual environment of their own.
#
#   tests/server/page/run.sh [unittest's arguments, such as -k reload]
#   PAGE_PICTURES=1 tests/server/page/run.sh -k LookTest      (makes docs/images/serve-*.png)
set -euo pipefail
cd "$(dirname "$0")/../../.."

for program in chromium chromedriver; do
  command -v "$program" >/dev/null || { echo "$program not found; install chromium and chromium-driver" >&2; exit 1; }
done
venv=build/page-venv
if ! cmp -s tests/server/page/requirements.txt "$venv/requirements.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -r tests/server/page/requirements.txt
  cp tests/server/page/requirements.txt "$venv/requirements.txt"
fi
exec "$venv/bin/python" -m unittest discover -s tests/server/page "$@"

#!/usr/bin/env bash
# Linter, formatter, type checker, then the tests. Runs them all, and fails if any of them does.
#
#   launch/test.sh                      everything: within an hour on two cores
#   launch/test.sh --quick              without the tests marked cluster or slow: within 3 minutes
#   launch/test.sh --quick tests/run    other arguments go to pytest; paths count from the repository root

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

selected=()
if [[ ${1-} == --quick ]]; then
  selected=(-m "not cluster and not slow" -n logical --dist=worksteal)  # on all cores; clusters need them for themselves
  shift
fi

cd "$ROOT"
status=0
"$VENV/bin/ruff" check . || status=1
"$VENV/bin/ruff" format --check . || status=1
"$VENV/bin/mypy" async_dqn || status=1
"$VENV/bin/python" -m pytest "${selected[@]}" "$@" || status=1
exit "$status"

#!/usr/bin/env bash
# Linter, formatter, type checker, then the tests. Runs them all, and fails if any of them does.
#
#   launch/test.sh                               everything
#   launch/test.sh -m 'not cluster' tests/cluster     arguments go to pytest; paths count from the repository root

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

cd "$ROOT"
status=0
"$VENV/bin/ruff" check . || status=1
"$VENV/bin/ruff" format --check . || status=1
"$VENV/bin/mypy" async_dqn || status=1
"$VENV/bin/python" -m pytest "$@" || status=1
exit "$status"

#!/usr/bin/env bash
# Linter, formatter, type checker, then the tests. Runs them all, and fails if any of them does.
#
#   launch/test.sh                      everything: 45 minutes on two fast cores, two hours on two slow ones
#   launch/test.sh --minutes=80         what begins within so many minutes; says what it has left out
#   launch/test.sh --quick              without the tests marked cluster or slow: within 3 minutes
#   launch/test.sh --quick tests/run    other arguments go to pytest; paths count from the repository root

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

status=0 found=no limit=()
if [[ ${1-} == --minutes=* ]]; then
  [[ ${1#*=} =~ ^[0-9]{1,4}$ ]] || fail "$1: must be a whole number of minutes"
  limit=(--until "$(($(date +%s) - SECONDS + 60 * 10#${1#*=}))" -rs) # SECONDS: since the start of this script
  shift
fi

# pytest on the tests with these markers, and its other arguments.
tests() {
  local code=0
  "$VENV/bin/python" -m pytest "${limit[@]}" -m "$@" || code=$?
  if ((code != 5)); then # 5: of the tests that were asked for, none has these markers
    found=yes
    ((code == 0)) || status=1
  fi
}

on_all_cores=(-n logical --dist=worksteal)

trap 'exit 130' INT # pytest ends in its own way, which bash does not take for an interrupt

cd "$ROOT"
"$VENV/bin/ruff" check . || status=1
"$VENV/bin/ruff" format --check . || status=1
"$VENV/bin/mypy" async_dqn || status=1
if [[ ${1-} == --quick ]]; then
  tests "not cluster and not slow" "${on_all_cores[@]}" "${@:2}"
else
  tests "not cluster" "${on_all_cores[@]}" "$@"
  tests "cluster" "$@" # clusters need the cores for themselves
fi
[[ $found == yes ]] || status=1
exit "$status"

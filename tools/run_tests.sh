#!/usr/bin/env bash
# Runs every test of a built preset. Tests that need a GPU are left out, and counted, where there is
# none.
#   tools/run_tests.sh PRESET [more ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:?usage: tools/run_tests.sh PRESET [ctest arguments]}
shift
left_out=0
select=()
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  left_out=$(ctest --preset "$preset" -N -L gpu | sed -n 's/^Total Tests: //p')
  select=(-LE gpu)
fi
status=0
ctest --preset "$preset" -j "$(nproc)" --no-tests=error --progress "${select[@]}" "$@" || status=$?
if [ "${left_out:-0}" -gt 0 ]; then
  echo "$left_out tests need a GPU and were left out: this machine has none."
elif [ "${#select[@]}" -gt 0 ]; then
  echo "No test of this build needs a GPU."
fi
while read -r name tests; do
  echo "$tests tests of $name were skipped: they wait for a build without ThreadSanitizer."
done <"build/$preset/left_out.txt"
exit "$status"

#!/usr/bin/env bash
# clang-tidy 14 over the sources; TIDY_TESTS=1 adds the tests. Needs `tools/setup.sh lint`.
#   tools/run_tidy.sh               all of them
#   tools/run_tidy.sh FOLDER...     those of these folders
#   tools/run_tidy.sh --base REF    those of the folders that changed since the git commit REF
set -euo pipefail
cd "$(dirname "$0")/.."

folders=("$@")
if [ "${1:-}" = --base ]; then
  mapfile -t changed < <(git diff --name-only "${2:?--base needs a commit}" -- . | sort)
  folders=()
  for path in "${changed[@]}"; do
    case "$path" in
      # What every source depends on: look at everything.
      include/* | src/base/* | .clang-tidy | CMakeLists.txt | cmake/*) folders=(.) && break ;;
      *.h | *.cc) folders+=("$(dirname "$path")") ;;
    esac
  done
  if [ "${#folders[@]}" -eq 0 ]; then
    echo "tidy: no source changed since $2"
    exit 0
  fi
fi
[ "${#folders[@]}" -gt 0 ] || folders=(.)

mkdir -p build
cmake --preset tidy >build/tidy.log 2>&1 || { cat build/tidy.log; exit 1; }
mapfile -t sources < <(python3 - "${folders[@]}" <<'PY'
import json
import os
import pathlib
import sys

root = pathlib.Path.cwd()
folders = [(root / folder).resolve() for folder in sys.argv[1:]]
for entry in json.load(open("build/tidy/compile_commands.json")):
    path = pathlib.Path(entry["file"])
    inside = path.is_relative_to(root) and not path.is_relative_to(root / "build")
    test = path.stem.endswith("_test") or path.is_relative_to(root / "tests")
    inside = inside and (not test or os.environ.get("TIDY_TESTS") == "1")
    if inside and any(path.is_relative_to(folder) for folder in folders):
        print(path.relative_to(root))
PY
)
if [ "${#sources[@]}" -eq 0 ]; then
  echo "tidy: no sources in ${folders[*]}" >&2
  exit 1
fi
echo "tidy: ${#sources[@]} sources"
# --quiet still prints "N warnings generated" of system headers; that line says nothing.
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/tidy --quiet \
    2> >(grep -v 'warnings\? generated' >&2)

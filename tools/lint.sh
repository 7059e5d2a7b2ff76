#!/usr/bin/env bash
# The fast checks. `tools/lint.sh --fix` rewrites what can be rewritten first.
# Needs `tools/setup.sh lint`.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(find include src cli testing tests bindings plugins bench examples fuzz \
  -regex '.*\.\(h\|cc\|cu\|cuh\|c\)' 2>/dev/null | sort)
mapfile -t scripts < <(grep -rlE '^#!.*(bash|sh)$' tools .ci | sort)

if [ "${1:-}" = --fix ]; then
  .venv/bin/clang-format -i "${sources[@]}"
  .venv/bin/ruff check -q --fix . tools/new_op tools/gpu_check
  .venv/bin/ruff format -q . tools/new_op tools/gpu_check
fi

failed=()
check() {  # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then echo "lint: $name ok"; else failed+=("$name"); fi
}
check clang-format .venv/bin/clang-format --dry-run -Werror "${sources[@]}"
check layers tools/check_layers.py
check sizes tools/check_sizes.py
check basenames tools/check_basenames.py
check ruff .venv/bin/ruff check -q . tools/new_op tools/gpu_check
check "ruff format" .venv/bin/ruff format -q --check . tools/new_op tools/gpu_check
check "ctypes declarations" tools/gen_ctypes.py --check
check shellcheck shellcheck "${scripts[@]}"

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'lint: %s FAILED\n' "${failed[@]}" >&2
  exit 1
fi

#!/usr/bin/env bash
# Builds the wheel, installs it into a clean virtual environment, checks its types and runs its
# tests there. Compiles the shared library only, and not even that where a preset has it built.
#   tools/test_python.sh [PRESET]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
settings=(-C "build-dir=$work/build")
built=$PWD/build/$preset/liblinestate.so
if [ -e "$built" ]; then
  cmake --build "build/$preset" --target linestate_shared >/dev/null
  settings+=(-C "cmake.define.LINESTATE_PYTHON_LIBRARY=$built")
  echo "python: the library is that of build/$preset"
elif command -v ccache >/dev/null; then
  settings+=(-C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

python3 -m venv "$work/venv"
python=$work/venv/bin/python
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
pip wheel -q --no-deps -w "$work/wheel" "${settings[@]}" .
wheel=$(echo "$work"/wheel/linestate-*.whl)
pip install -q "$wheel" -r bindings/python/requirements-test.txt
echo "python: installed $(basename "$wheel")"

# From another folder, so that nothing of the tree is imported by accident.
cd "$work"
root=$OLDPWD
"$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$work/mypy" -p linestate
"$python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider \
  "$root/bindings/python/tests"
"$python" -B "$root/tools/doc_blocks.py" python
# Once more without the package that gives numpy a bfloat16, and with the oldest numpy that
# pyproject.toml allows, where this Python has it.
pip uninstall -q -y ml_dtypes
if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  pip install -q "numpy==$(sed -n 's/.*"numpy>=\([0-9.]*\)".*/\1/p' "$root/pyproject.toml").*"
fi
"$python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider \
  "$root/bindings/python/tests"

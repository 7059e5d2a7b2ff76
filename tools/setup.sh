#!/usr/bin/env bash
# Installs what a build, the linters or the sanitizers need, on Debian 12 or Ubuntu 24.04.
#   tools/setup.sh build|lint|sanitize|package|docs
# Asks the package manager only for what is missing, and does nothing when nothing is.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-}
# package and how to tell that it is there without the package manager: a command, or a header.
build_packages="cmake:cmake g++:g++ ninja-build:ninja python3:python3
  nlohmann-json3-dev:nlohmann/json.hpp libcli11-dev:CLI/CLI.hpp libgtest-dev:gtest/gtest.h
  libhwy-dev:hwy/highway.h"
clang_packages="clang-14:clang++-14 libomp-14-dev:/usr/lib/llvm-14/lib/libomp.so"
case "$mode" in
  build) wanted="$build_packages" ;;
  docs) wanted="python3:python3 doxygen:doxygen" ;;
  package) wanted="$build_packages pkg-config:pkg-config python3-venv:" ;;
  lint) wanted="$build_packages $clang_packages clang-tidy-14:clang-tidy-14
    shellcheck:shellcheck python3-venv:" ;;
  sanitize) wanted="$build_packages $clang_packages llvm-14:llvm-symbolizer-14
    libclang-rt-14-dev:/usr/lib/llvm-14/lib/clang" ;;
  *)
    echo "usage: tools/setup.sh build|lint|sanitize|package|docs" >&2
    exit 2
    ;;
esac

present() {  # PACKAGE:PROBE
  local package=${1%%:*} probe=${1#*:} folder
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed && return 0
  case "$probe" in
    "") python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    /*) [ -e "$probe" ] ;;
    */*)
      for folder in /usr/include /usr/local/include; do
        [ -e "$folder/$probe" ] && return 0
      done
      return 1
      ;;
    *) command -v "$probe" >/dev/null 2>&1 ;;
  esac
}

missing=()
for entry in $wanted; do
  present "$entry" || missing+=("${entry%%:*}")
done

install_missing() {
  local -a as_root=()
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this is not Debian or Ubuntu. Please install what these packages hold:" >&2
    echo "  ${missing[*]}" >&2
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)  # nobody is there to type a password
    if ! command -v sudo >/dev/null 2>&1 || ! "${as_root[@]}" true; then
      echo "setup: these packages are missing, and there is neither root nor sudo:" >&2
      echo "  ${missing[*]}" >&2
      echo "Please have them installed: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
    --no-install-recommends "${missing[@]}" </dev/null
}
[ "${#missing[@]}" -eq 0 ] || install_missing

if [ "$mode" = lint ] && ! cmp -s tools/requirements-lint.txt .venv/requirements-lint.txt; then
  echo "setup: Python tools into .venv"
  python3 -m venv --clear .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements-lint.txt
  cp tools/requirements-lint.txt .venv/
fi

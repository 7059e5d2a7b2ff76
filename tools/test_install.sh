#!/usr/bin/env bash
# Installs a built preset into a temporary folder and uses it from there as a stranger would: the
# CMake example, and a C program by pkg-config, each with the shared and the static library; then
# the packages' contents. Compiles nothing of the library: the build has it.
#   tools/test_install.sh [PRESET]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu-release}
build=$PWD/build/$preset
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "install: $*"; }

cmake --build "$build" --target linestate linestate_shared linestate_command
tools/symbols.py "$build/liblinestate.a"
tools/symbols.py "$build/liblinestate.so"

# Moved after the installation: nothing in it may know where it was first.
cmake --install "$build" --prefix "$work/first" >"$work/log"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
python3 -B tools/package_files.py "$prefix"
"$prefix/bin/linestate" info >"$work/info"
version=$(sed -n '1s/^linestate \([0-9.]*\).*/\1/p' "$work/info")
grep -q "^## $version\b" CHANGELOG.md || { say "CHANGELOG.md has no section $version"; exit 1; }
say "the command of version $version runs"

for static in OFF ON; do
  tree=$work/cmake-$static
  cmake -G Ninja -S examples/cmake_consumer -B "$tree" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$prefix" -DLINESTATE_USE_STATIC_LIBS=$static >"$work/log" ||
    { cat "$work/log"; exit 1; }
  cmake --build "$tree" >"$work/log" || { cat "$work/log"; exit 1; }
  ctest --test-dir "$tree" --output-on-failure --no-tests=error >"$work/log" ||
    { cat "$work/log"; exit 1; }
  linked=$(ldd "$tree/decay_demo" | grep -c liblinestate || true)
  [ "$linked" -eq "$([ $static = OFF ] && echo 1 || echo 0)" ] ||
    { say "static=$static linked the other library"; exit 1; }
  say "examples/cmake_consumer ran, LINESTATE_USE_STATIC_LIBS=$static"
done

# A project in C alone, and requests that must be refused.
project() {  # FIND_PACKAGE_ARGUMENTS
  mkdir -p "$work/project"
  cat >"$work/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(stranger LANGUAGES C)
find_package(linestate $1)
add_executable(stranger $PWD/examples/c/decode_layer.c)
target_link_libraries(stranger PRIVATE linestate::c)
END
  cmake -G Ninja -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" \
    >"$work/log" 2>&1
}
refuse() {  # FIND_PACKAGE_ARGUMENTS TEXT
  if project "$1"; then
    say "find_package(linestate $1) was accepted"
    exit 1
  fi
  grep -q "$2" "$work/log" || { cat "$work/log"; exit 1; }
}
project "0.1 REQUIRED COMPONENTS c" || { cat "$work/log"; exit 1; }
cmake --build "$work/project/build" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/project/build/stranger" >/dev/null
refuse "99.0 REQUIRED" "version: $version"
refuse "0.1 REQUIRED COMPONENTS python" "asked for was python"
say "a project in C alone runs; find_package refuses another version and an unknown component"

libdir=$(dirname "$(find "$prefix" -name liblinestate.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion linestate)" = "$version" ]
read -ra flags < <(pkg-config --cflags --libs linestate)
cc -std=c99 examples/c/decode_layer.c -o "$work/shared" "${flags[@]}" "-Wl,-rpath,$libdir"
"$work/shared" >"$work/shared.out"
read -ra flags < <(pkg-config --static --cflags --libs linestate)
cc -std=c99 examples/c/decode_layer.c -o "$work/static" "${flags[@]/-llinestate/-l:liblinestate.a}"
"$work/static" >"$work/static.out"
cmp "$work/shared.out" "$work/static.out"
say "examples/c/decode_layer.c ran by pkg-config, shared and static: $(cat "$work/shared.out")"

# Only the library that BUILD_SHARED_LIBS asks for; the objects are the same, nothing is compiled.
trap 'cmake "$build" -UBUILD_SHARED_LIBS >/dev/null; rm -rf "$work"' EXIT
for shared in ON OFF; do
  cmake "$build" -DBUILD_SHARED_LIBS=$shared >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cmake --build "$build" --target linestate linestate_shared linestate_command >"$work/log"
  cmake --install "$build" --prefix "$work/only-$shared" >"$work/log"
  tree=$work/cmake-only-$shared
  cmake -G Ninja -S examples/cmake_consumer -B "$tree" -DCMAKE_PREFIX_PATH="$work/only-$shared" \
    >"$work/log" || { cat "$work/log"; exit 1; }
  cmake --build "$tree" >"$work/log" || { cat "$work/log"; exit 1; }
  "$tree/decay_demo" >/dev/null
  found=$(find "$work/only-$shared" -name 'liblinestate.*' -printf '%f\n' | sort | xargs)
  say "BUILD_SHARED_LIBS=$shared installs $found"
done
cmake "$build" -UBUILD_SHARED_LIBS >/dev/null
trap 'rm -rf "$work"' EXIT

(cd "$build" && cpack -B "$work/packages" >"$work/log") || { cat "$work/log"; exit 1; }
mkdir "$work/tgz" "$work/deb"
tar -xzf "$work"/packages/linestate-*.tar.gz -C "$work/tgz" --strip-components=1
python3 -B tools/package_files.py "$work/tgz"
if command -v dpkg-deb >/dev/null; then
  dpkg-deb -x "$work"/packages/linestate_*.deb "$work/deb"
  python3 -B tools/package_files.py "$work/deb/usr"
fi
say "packages hold what they should: $(cd "$work/packages" && echo *.tar.gz *.deb)"

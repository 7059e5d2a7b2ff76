#!/usr/bin/env bash
# Builds the given presets (asan-ubsan, tsan) and runs every test under each.
# Needs `tools/setup.sh sanitize`.
set -euo pipefail
cd "$(dirname "$0")/.."

# ThreadSanitizer knows nothing of OpenMP's own synchronisation: Archer, which clang's libomp loads
# by itself, tells it. Both ways it can be wrong are tried on two small programs before any test is
# believed: a loop without a race must be silent, and a race must be reported.
probe_tsan() {
  local folder name status
  folder=$(mktemp -d)
  cat >"$folder/clean.cc" <<'CC'
#include <vector>
int main() {
  std::vector<int> v(1000);
  for (int round = 0; round < 20; ++round) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(4)
    for (int i = 0; i < 1000; ++i) v[i] += i;
    for (int i = 0; i < 1000; ++i) v[i] += 1;
  }
  return v[999] == 0;
}
CC
  cat >"$folder/race.cc" <<'CC'
int main() {
  long sum = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(4)
  for (int i = 0; i < 100000; ++i) sum += i;
  return sum == 0;
}
CC
  for name in clean race; do
    clang++-14 -O1 -g -fopenmp -fsanitize=thread "$folder/$name.cc" -o "$folder/$name"
    status=0
    TSAN_OPTIONS=ignore_noninstrumented_modules=1 "$folder/$name" >"$folder/$name.log" 2>&1 ||
      status=$?
    case "$name:$status" in
      clean:0) ;;
      race:66) grep -q 'WARNING: ThreadSanitizer: data race' "$folder/$name.log" ;;
      *)
        cat "$folder/$name.log"
        echo "sanitize: ThreadSanitizer does not work here ($name exits $status)" >&2
        return 1
        ;;
    esac
  done
  rm -rf "$folder"
  echo "sanitize: ThreadSanitizer sees a race, and none where there is none"
}

for preset in "$@"; do
  [ "$preset" != tsan ] || probe_tsan
  mkdir -p build
  flags=()
  command -v ccache >/dev/null 2>&1 && flags+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake --preset "$preset" "${flags[@]}" >"build/$preset.log" 2>&1 ||
    { cat "build/$preset.log"; exit 1; }
  cmake --build --preset "$preset" -j "$(nproc)"
  tools/run_tests.sh "$preset"
done

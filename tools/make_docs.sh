#!/usr/bin/env bash
# The reference and the pages as HTML, in build/docs/html. A public member without a word of
# explanation and a link that leads nowhere are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

LINESTATE_ROOT=$PWD
LINESTATE_DOCS=$PWD/build/docs
LINESTATE_VERSION=$(sed -n 's/^#define LINESTATE_VERSION_[A-Z]* //p' include/linestate/version.h |
  paste -sd .)
export LINESTATE_ROOT LINESTATE_DOCS LINESTATE_VERSION
rm -rf "$LINESTATE_DOCS"
mkdir -p "$LINESTATE_DOCS"
doxygen docs/api/Doxyfile
echo "docs: $(find "$LINESTATE_DOCS/html" -name '*.html' | wc -l) pages, build/docs/html/index.html"

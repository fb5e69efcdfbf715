#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs `bazel test` without the network, with Debian's bazel-bootstrap, on the
# Python of $ZAYA_PYTHON (else the active virtual environment's, else .venv's).
# Bazel reads the interpreter's package list when its server starts, so the
# server is restarted to see what pip has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v bazel >/dev/null; then
  echo 'bazel is not installed: apt-get install bazel-bootstrap, or bazelisk.' >&2
  exit 2
fi
bazel shutdown
exec bazel test "${@:-//...}"

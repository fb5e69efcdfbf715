#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes an image of deploy/Dockerfile from /image: image.sh EXTRAS PACKAGES...
# EXTRAS are those of docs/install.md, with commas; PACKAGES of the distribution.
set -eu
extras=$1
shift
if [ $# -gt 0 ]; then
  apt-get update
  apt-get install --yes --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/*
fi
# The versions of the lock without its hashes, which pip wants of all or none:
# plugins of accelerators are not in it. Each has the version of jax.
sed -n 's/^\([^ ]*==[^\\]*\).*/\1/p' /image/requirements_lock.txt \
  > /image/constraints.txt
python3 -m venv /opt/zaya
/opt/zaya/bin/pip install --quiet --no-cache-dir \
  --constraint /image/constraints.txt "$(ls /image/*.whl)[$extras]"
useradd --uid 10001 --create-home zaya
chown -R zaya /zaya/runs

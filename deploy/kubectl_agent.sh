#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts a program in the pod of a node: kubectl_agent.sh NODE COMMAND...
# NODE is the pod's name in DNS, JOB-INDEX.JOBSET; that of the pod itself ends at
# random, and is another one after a restart.
set -euo pipefail
host=${1%%.*}
shift
job="batch.kubernetes.io/job-name=${host%-*}"
index="batch.kubernetes.io/job-completion-index=${host##*-}"
# The newest is last: an older one may still be ending.
pods=$(kubectl get pods --selector="$job,$index" --output=name \
  --field-selector=status.phase=Running --sort-by=.metadata.creationTimestamp)
pod=${pods##*$'\n'}
if [[ -z $pod ]]; then
  echo "no pod of $host is running" >&2
  exit 1
fi
exec kubectl exec --stdin "$pod" --container=node -- "$@"

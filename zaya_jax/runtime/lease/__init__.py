# SPDX-License-Identifier: Apache-2.0
"""Who owns a run, and the facts that only the owner may change.

A run has one owner at a time, known by a token whose epoch only grows. What a
process wrote with an older token is refused where the facts are kept: in this
user's state directory, in etcd or in Kubernetes.
"""

import os
import secrets
import socket

from zaya_jax.runtime.lease import errors, homes, store, tokens

Token = tokens.Token
Store = store.Store
LeaseError = errors.LeaseError
StoreError = errors.StoreError
HeldError = errors.HeldError
LostError = errors.LostError

open = homes.open_store


def owner_name() -> str:
  """A name that no other process has or will have: host, process, chance."""
  return f'{socket.gethostname()} pid {os.getpid()} {secrets.token_hex(4)}'

# SPDX-License-Identifier: Apache-2.0
"""Addresses of lease stores: `local`, `etcd://...`, `kubernetes://...`."""

import os

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors, local, store


def open_store(
  address: str, *, run_id: str, run_dir: str | os.PathLike[str]
) -> store.Store:
  """Opens the lease store at an address; nothing is acquired or changed.

  Args:
    address: `local`, `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]` or
      `kubernetes://NAMESPACE[/PREFIX]`.
    run_id: of the run (`run_files.run_id`).
    run_dir: of the run.

  Raises:
    StoreError: the address is none (exit code 2), or nobody answers at it.
  """
  if address == 'local':
    return local.Local(run_id, run_dir)
  try:
    if address.startswith('etcd://'):
      from zaya_jax.runtime.lease import etcd

      return etcd.Etcd(address, run_id, run_dir)
    if address.startswith('kubernetes://'):
      from zaya_jax.runtime.lease import kube

      return kube.Kubernetes(address, run_id, run_dir)
  except ModuleNotFoundError as error:
    raise errors.StoreError(
      f'--aegis.lease={address} needs {error.name}: python -m pip install '
      f"'zaya_jax[{address.partition(':')[0]}]'.",
      exit_codes.USAGE,
    ) from error
  raise errors.StoreError(
    f'--aegis.lease={address} is none of local, '
    'etcd://HOST:PORT[,HOST:PORT...][/PREFIX] and '
    'kubernetes://NAMESPACE[/PREFIX].',
    exit_codes.USAGE,
  )

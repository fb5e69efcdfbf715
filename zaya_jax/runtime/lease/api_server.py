# SPDX-License-Identifier: Apache-2.0
"""The API server of a Kubernetes cluster: how to reach it, what it refuses."""

import json
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import kubernetes
import urllib3

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors

# Seconds for a connection, and for each part of an answer.
REQUEST_S: Final = (2.0, 3.0)

_Answer = TypeVar('_Answer')


class ApiServer:
  """That of the pod's cluster, or of the kubeconfig.

  Args:
    address: as the user gave it, for messages.

  Attributes:
    leases: methods for Leases, to be asked by `ask`.
    maps: for ConfigMaps.

  Raises:
    StoreError: with exit code 2, if neither is there.
  """

  def __init__(self, address: str):
    self._address = address
    settings = self._settings()
    settings.retries = False  # It would wait for as long as a server says.
    client = kubernetes.client.ApiClient(settings)
    self.close = client.close
    self.leases = kubernetes.client.CoordinationV1Api(client)
    self.maps = kubernetes.client.CoreV1Api(client)

  def ask(
    self, ask: Callable[..., _Answer], *arguments: Any, others: int
  ) -> _Answer | None:
    """The answer of a method of `leases` or `maps`.

    Args:
      ask: the method.
      *arguments: its own.
      others: the HTTP status that is no error.

    Returns:
      The answer; None: the status was `others`.

    Raises:
      StoreError: the server refuses (exit code 2) or does not answer.
    """
    try:
      return ask(*arguments, _request_timeout=REQUEST_S)
    except kubernetes.client.ApiException as error:
      if error.status == others:
        return None
      raise self._refusal(error) from None
    # ValueError: an answer that is none of this API.
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
      if isinstance(error, urllib3.exceptions.TimeoutError):
        cause = f'no answer in {REQUEST_S[1]:g} s'
      else:
        cause = ' '.join(str(error).split())[-160:]
      raise errors.StoreError(
        f'{self._address} does not answer ({cause}).'
      ) from None

  def _settings(self) -> Any:
    settings = kubernetes.client.Configuration()
    try:
      try:
        kubernetes.config.load_incluster_config(client_configuration=settings)
      except kubernetes.config.ConfigException:  # In no pod.
        kubernetes.config.load_kube_config(
          config_file=os.environ.get('KUBECONFIG'),
          client_configuration=settings,
        )
    except (kubernetes.config.ConfigException, OSError) as error:
      raise errors.StoreError(
        f'--aegis.lease={self._address} needs a pod with a service account, or '
        'a kubeconfig (~/.kube/config, KUBECONFIG): there is none that can be '
        'read.',
        exit_codes.USAGE,
      ) from error
    return settings

  def _refusal(self, error: Any) -> errors.StoreError:
    try:
      said = str(json.loads(error.body)['message'])
    except (ValueError, LookupError, TypeError):
      said = str(error.reason)
    told = f'{error.status}: {" ".join(said.split())[:160]}'
    if error.status in (400, 401, 403, 404, 422):
      return errors.StoreError(
        f'--aegis.lease={self._address} is refused ({told}); docs/leases.md '
        'has the role that it needs.',
        exit_codes.USAGE,
      )
    return errors.StoreError(f'{self._address} does not answer ({told}).')

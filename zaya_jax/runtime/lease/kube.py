# SPDX-License-Identifier: Apache-2.0
"""A lease that the API server of a Kubernetes cluster keeps.

The run is one Lease object, PREFIX-ID: its holder is the owner, its transitions
are the epoch, and the facts are its annotations, so that one compare-and-swap
by resourceVersion guards them. All runs share the ConfigMap PREFIX-site.

The server ends no lease. Who wants the run watches the holder's renewals, each
of which has another random number, and takes it after a whole `ttl_s` by its
own clock in which there was none; the clocks of two machines are not compared.
"""

import contextlib
import datetime
import functools
import json
import math
import os
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

import kubernetes

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import api_server, errors, store, tokens

_ADDRESS = re.compile(
  r'kubernetes://(?P<namespace>[a-z0-9][a-z0-9-]{0,62})'
  r'(/(?P<prefix>[a-z0-9][a-z0-9-]{0,62}))?/?'
)
_PREFIX: Final = 'zaya-jax'
_RENEWAL: Final = 'zaya-jax/renewal'
_FACT: Final = 'zaya-jax/fact.'
_TRIES: Final = 20  # Of a compare-and-swap that others win.


class Kubernetes(store.Store):
  """As `store.Store`.

  Args:
    address: `kubernetes://NAMESPACE[/PREFIX]`; server and credentials are those
      of the pod, or of the kubeconfig.
    run_id: of the run.
    run_dir: of the run.

  Raises:
    StoreError: a setting is wrong (exit code 2), or the server does not answer.
  """

  def __init__(self, address: str, run_id: str, run_dir: str | os.PathLike):
    found = _ADDRESS.fullmatch(address)
    if not found:
      raise errors.StoreError(
        f'--aegis.lease={address} is not kubernetes://NAMESPACE[/PREFIX], both '
        'in small letters, digits and -.',
        exit_codes.USAGE,
      )
    super().__init__(address, run_id, run_dir)
    self._namespace = found['namespace']
    prefix = found['prefix'] or _PREFIX
    self._name, self._site = f'{prefix}-{run_id}', f'{prefix}-site'
    self._server = api_server.ApiServer(address)
    self._ask, self._leases = self._server.ask, self._server.leases
    self._maps = self._server.maps
    self._renewal = ''  # The last that this object has written.
    # The last of somebody else, and since when it is there.
    self._seen: tuple[Any, float] = (None, 0.0)
    self._get()  # Does anybody answer?

  def holder(self) -> tokens.Token | None:
    """As `Store.holder`; one that is late remains until another takes over."""
    return _token(self._get())

  def read_site(self, key: str) -> dict[str, Any] | None:
    """As `Store.read_site`; shared by all runs with this prefix."""
    found = self._get_site()
    return self._parse((found.data or {}).get(key), key) if found else None

  def update_site(self, key: str, function: store.Update) -> dict[str, Any]:
    """As `Store.update_site`."""
    for _ in range(_TRIES):
      found = self._get_site()
      data = (found.data or {}) if found else {}
      value = function(self._parse(data.get(key), key))
      data = {**data, key: json.dumps(value)}
      if found:
        found.data = data
        ask = functools.partial(
          self._maps.replace_namespaced_config_map, self._site
        )
      else:
        found = kubernetes.client.V1ConfigMap(
          metadata=self._metadata(self._site), data=data
        )
        ask = self._maps.create_namespaced_config_map
      if self._ask(ask, self._namespace, found, others=409):
        return value
    raise self._too_many(self._site)

  def close(self) -> None:
    """Closes all connections."""
    super().close()
    self._server.close()

  def _state(self) -> tuple[str, int | None]:
    for _ in range(_TRIES):
      if lease := self._get():
        return lease.metadata.uid, lease.spec.lease_transitions or 0
      lease = kubernetes.client.V1Lease(
        metadata=self._metadata(self._name),
        spec=kubernetes.client.V1LeaseSpec(lease_transitions=0),
      )
      create = self._leases.create_namespaced_lease
      self._ask(create, self._namespace, lease, others=409)
    raise self._too_many(self._name)

  def _acquire(self, owner: str, ttl_s: float, floor: int) -> tokens.Token:
    for _ in range(_TRIES):
      if not (lease := self._get()):
        break
      self._raise_if_held(lease)
      spec = lease.spec
      token = tokens.Token(owner, max(floor, spec.lease_transitions or 0) + 1)
      spec.holder_identity, spec.lease_transitions = owner, token.epoch
      spec.lease_duration_seconds = max(1, math.ceil(ttl_s))
      spec.acquire_time = _now()
      if self._put_renewal(lease):
        return token
    raise self._too_many(self._name)

  def _raise_if_held(self, lease: Any) -> None:
    """Passes if nobody holds the run, or the holder has been silent."""
    holder = _token(lease)
    renewal = (lease.metadata.annotations or {}).get(_RENEWAL)
    # Ours: the answer was lost. It was taken too long ago to be counted on.
    if not holder or (renewal and renewal == self._renewal):
      return
    now = self._now()
    if self._seen[0] != (holder, renewal):
      self._seen = (holder, renewal), now
    ttl_s = lease.spec.lease_duration_seconds or 0
    if (rest := self._seen[1] + ttl_s - now) > 0:
      raise errors.HeldError(
        f'Run {self.run_id} is owned by {holder.owner} (epoch {holder.epoch}) '
        f'in {self.address}; stop it, or ask again until it has been silent '
        f'for {rest:.1f} s more.',
        holder,
      )

  def _renew(self, token: tokens.Token) -> None:
    self._change(token, self._put_renewal)

  def _release(self, token: tokens.Token) -> None:
    def give_up(lease: Any) -> Any:
      lease.spec.holder_identity = None
      return self._put(lease)

    with contextlib.suppress(errors.LostError):
      self._change(token, give_up)

  def _read(self, key: str) -> dict[str, Any] | None:
    lease = self._get()
    facts = (lease.metadata.annotations or {}) if lease else {}
    return self._parse(facts.get(_FACT + key), key)

  def _write(
    self, key: str, value: dict[str, Any], token: tokens.Token
  ) -> None:
    def put(lease: Any) -> Any:
      facts = lease.metadata.annotations or {}
      lease.metadata.annotations = {**facts, _FACT + key: json.dumps(value)}
      return self._put(lease)

    self._change(token, put)

  def _change(self, token: tokens.Token, put: Callable[[Any], Any]) -> None:
    """Puts the Lease, changed, if `token` owns it and nothing else changed."""
    for _ in range(_TRIES):
      lease = self._get()
      if not lease or (holder := _token(lease)) != token:
        raise self._lost(token, holder if lease else None)
      if put(lease):
        return
    raise self._too_many(self._name)

  def _put_renewal(self, lease: Any) -> Any:
    self._renewal = secrets.token_hex(8)
    annotations = lease.metadata.annotations or {}
    lease.metadata.annotations = {**annotations, _RENEWAL: self._renewal}
    lease.spec.renew_time = _now()
    return self._put(lease)

  def _put(self, lease: Any) -> Any:
    replace = self._leases.replace_namespaced_lease
    return self._ask(replace, self._name, self._namespace, lease, others=409)

  def _get(self) -> Any:
    read = self._leases.read_namespaced_lease
    return self._ask(read, self._name, self._namespace, others=404)

  def _get_site(self) -> Any:
    read = self._maps.read_namespaced_config_map
    return self._ask(read, self._site, self._namespace, others=404)

  def _metadata(self, name: str) -> Any:
    return kubernetes.client.V1ObjectMeta(
      name=name, labels={'app.kubernetes.io/name': 'zaya-jax'}
    )

  def _too_many(self, name: str) -> errors.StoreError:
    return errors.StoreError(f'{self.address}: others change {name} too often.')


def _token(lease: Any) -> tokens.Token | None:
  if not lease or not lease.spec.holder_identity:
    return None
  return tokens.Token(
    lease.spec.holder_identity, lease.spec.lease_transitions or 0
  )


def _now() -> datetime.datetime:
  """The time, for people; the server takes none that has no fraction."""
  now = datetime.datetime.now(datetime.UTC)
  return now.replace(microsecond=now.microsecond or 1)

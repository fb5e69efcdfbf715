# SPDX-License-Identifier: Apache-2.0
"""A lease that an etcd cluster holds.

Keys under the prefix:

    identity          made once: another value is another, or an emptied, store
    runs/ID/epoch     of the newest owner
    runs/ID/owner     the token; gone when its lease is
    runs/ID/facts/KEY
    dirs/HASH         the same owner, by the path of its run directory
    site/KEY          shared by all runs

The owner's two keys and the new epoch are put in one transaction, if neither
key is there. A fact is put in one that compares the owner's key.
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import secrets
from typing import Any, Final

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import endpoints, errors, store, tokens

_ADDRESS = re.compile(r'etcd://(?P<hosts>[^/@]+)(?P<prefix>(/[\w.-]+)*)/?')
_PREFIX: Final = '/zaya_jax'
_TRIES: Final = 20  # Of a compare-and-swap that others win.


class Etcd(store.Store):
  """As `store.Store`.

  Args:
    address: `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`.
    run_id: of the run.
    run_dir: of the run.

  Raises:
    StoreError: a setting is wrong (exit code 2), or no endpoint answers.
  """

  def __init__(self, address: str, run_id: str, run_dir: str | os.PathLike):
    found = _ADDRESS.fullmatch(address)
    if not found:
      raise errors.StoreError(
        '--aegis.lease must be etcd://HOST:PORT[,HOST:PORT...][/PREFIX], with '
        f'user and password elsewhere ({endpoints.USER}).',
        exit_codes.USAGE,
      )
    super().__init__(address, run_id, run_dir)
    self._prefix = found['prefix'] or _PREFIX
    self._endpoints = endpoints.Endpoints(
      address, found['hosts'].split(','), os.environ
    )
    self._run = f'{self._prefix}/runs/{run_id}'
    self._owner = f'{self._run}/owner'
    directory = hashlib.sha256(os.path.realpath(run_dir).encode()).hexdigest()
    self._dir = f'{self._prefix}/dirs/{directory[:32]}'
    self._lease = ''
    self._value(f'{self._prefix}/identity')  # Does anybody answer?

  def holder(self) -> tokens.Token | None:
    """As `Store.holder`."""
    return _token(self._value(self._owner))

  def read_site(self, key: str) -> dict[str, Any] | None:
    """As `Store.read_site`; shared by all runs under the prefix."""
    return self._value(f'{self._prefix}/site/{key}')

  def update_site(self, key: str, function: store.Update) -> dict[str, Any]:
    """As `Store.update_site`."""
    name = f'{self._prefix}/site/{key}'
    for _ in range(_TRIES):
      old, revision = self._get(name)
      value = function(old)
      if self._transact([_unchanged(name, revision)], [_put(name, value)])[0]:
        return value
    raise errors.StoreError(f'{self.address}: too many others change {name}.')

  def close(self) -> None:
    """Closes all connections."""
    super().close()
    self._endpoints.close()

  def _state(self) -> tuple[str, int | None]:
    name = f'{self._prefix}/identity'
    made = {'identity': secrets.token_hex(16)}
    self._transact([_unchanged(name, 0)], [_put(name, made)])
    epoch = self._value(f'{self._run}/epoch') or {'epoch': 0}
    if not (known := self._value(name)):
      raise errors.StoreError(f'{self.address} forgets what it is told.')
    return known['identity'], epoch['epoch']

  def _acquire(self, owner: str, ttl_s: float, floor: int) -> tokens.Token:
    self._raise_if_held()  # Before a lease is made for nothing.
    grant = {'TTL': max(1, math.ceil(ttl_s)), 'ID': 0}
    self._lease = self._endpoints.ask('/lease/grant', grant).get('ID', '')
    try:
      for _ in range(_TRIES):
        epoch, revision = self._get(f'{self._run}/epoch')
        number = max(floor, (epoch or {}).get('epoch', 0)) + 1
        token = tokens.Token(owner, number)
        if self._put_owner(token, revision):
          return token
        if ours := self._token_of_lease():  # An earlier answer was lost.
          return ours
        self._raise_if_held()
      raise errors.StoreError(f'{self.address}: too many others want the run.')
    except BaseException as error:
      with contextlib.suppress(errors.StoreError):  # It runs out, too.
        self._revoke()
      if isinstance(error, endpoints.NotFoundError):
        raise errors.StoreError(
          f'{self.address} is so slow that a lease of {ttl_s:g} s ran out '
          'before it was used; ask again.'
        ) from None
      raise

  def _put_owner(self, token: tokens.Token, revision: int) -> bool:
    claim = {**vars(token), 'run': self.run_id}
    return self._transact(
      [
        _unchanged(self._owner, 0),
        _unchanged(self._dir, 0),
        _unchanged(f'{self._run}/epoch', revision),
      ],
      [
        _put(f'{self._run}/epoch', {'epoch': token.epoch}),
        _put(self._owner, vars(token), self._lease),
        _put(self._dir, claim, self._lease),
      ],
    )[0]

  def _raise_if_held(self) -> None:
    if holder := self.holder():
      raise errors.HeldError(
        f'Run {self.run_id} is owned by {holder.owner} (epoch {holder.epoch}) '
        f'in {self.address}; wait for it or stop it.',
        holder,
      )
    if claim := self._value(self._dir):
      raise errors.HeldError(
        f'{self.run_dir} is in use by {claim["owner"]} as run {claim["run"]}, '
        f'and not {self.run_id}: stop that run, or, if its directory only has '
        'the same path, give this one another /PREFIX in --aegis.lease.',
        _token(claim),
      )

  def _renew(self, token: tokens.Token) -> None:
    try:
      answer = self._endpoints.ask('/lease/keepalive', {'ID': self._lease})
    except endpoints.NotFoundError:
      raise self._lost(token, self.holder()) from None
    if int(answer.get('result', {}).get('TTL', 0)) <= 0:
      raise self._lost(token, self.holder())
    # A leader that was deposed prolongs leases, too; most members must say that
    # the key is there.
    if (holder := self.holder()) != token:
      raise self._lost(token, holder)

  def _release(self, token: tokens.Token) -> None:
    self._revoke()

  def _revoke(self) -> None:
    with contextlib.suppress(endpoints.NotFoundError):
      self._endpoints.ask('/lease/revoke', {'ID': self._lease})

  def _read(self, key: str) -> dict[str, Any] | None:
    return self._value(f'{self._run}/facts/{key}')

  def _write(
    self, key: str, value: dict[str, Any], token: tokens.Token
  ) -> None:
    owned = {
      'key': _encode(self._owner),
      'target': 'VALUE',
      'result': 'EQUAL',
      'value': _encode(_dump(vars(token))),
    }
    succeeded, kvs = self._transact(
      [owned], [_put(f'{self._run}/facts/{key}', value)], [_range(self._owner)]
    )
    if not succeeded:
      raise self._lost(token, _token(self._load(self._owner, kvs[0])))

  def _value(self, key: str) -> dict[str, Any] | None:
    return self._get(key)[0]

  def _token_of_lease(self) -> tokens.Token | None:
    """The owner's token, if it hangs on our lease."""
    answer = self._endpoints.ask('/kv/range', {'key': _encode(self._owner)})
    ours = [
      kv for kv in answer.get('kvs', []) if kv.get('lease') == self._lease
    ]
    return _token(self._load(self._owner, ours))

  def _get(self, key: str) -> tuple[dict[str, Any] | None, int]:
    """The value of a key, and the revision of its last change; 0: none."""
    answer = self._endpoints.ask('/kv/range', {'key': _encode(key)})
    kvs = answer.get('kvs', [])
    revision = int(kvs[0]['mod_revision']) if kvs else 0
    return self._load(key, kvs), revision

  def _transact(
    self,
    compare: list[dict[str, Any]],
    success: list[dict[str, Any]],
    failure: list[dict[str, Any]] | None = None,
  ) -> tuple[bool, list[list[dict[str, Any]]]]:
    """Whether all compared true, and what the ranges of `failure` found."""
    question = {
      'compare': compare,
      'success': success,
      'failure': failure or [],
    }
    answer = self._endpoints.ask('/kv/txn', question)
    ranges = [
      response['response_range'].get('kvs', [])
      for response in answer.get('responses', [])
      if 'response_range' in response
    ]
    return answer.get('succeeded', False), ranges

  def _load(self, key: str, kvs: list[dict[str, Any]]) -> dict[str, Any] | None:
    text = base64.b64decode(kvs[0].get('value', '')) if kvs else None
    return self._parse(text, key)


def _token(value: dict[str, Any] | None) -> tokens.Token | None:
  return tokens.Token(value['owner'], value['epoch']) if value else None


def _unchanged(key: str, revision: int) -> dict[str, Any]:
  """Compares the revision of a key's last change; 0: it is not there."""
  return {
    'key': _encode(key),
    'target': 'MOD',
    'result': 'EQUAL',
    'mod_revision': revision,
  }


def _put(key: str, value: dict[str, Any], lease: str = '0') -> dict[str, Any]:
  put = {'key': _encode(key), 'value': _encode(_dump(value)), 'lease': lease}
  return {'request_put': put}


def _range(key: str) -> dict[str, Any]:
  return {'request_range': {'key': _encode(key)}}


def _dump(value: dict[str, Any]) -> str:
  """The one text of a value, as tokens are compared by theirs."""
  return json.dumps(value, sort_keys=True)


def _encode(text: str) -> str:
  return base64.b64encode(text.encode()).decode()

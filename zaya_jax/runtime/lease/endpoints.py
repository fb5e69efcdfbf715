# SPDX-License-Identifier: Apache-2.0
"""The members of an etcd cluster: whom to ask, with which TLS and which user.

etcd3gw makes the requests. What it does not know is here: several endpoints,
user and password, and a bound on all the requests of one question.
"""

import json
import pathlib
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import etcd3gw
import requests
from etcd3gw import exceptions

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors

USER: Final = 'ZAYA_ETCD_USER'
PASSWORD_FILE: Final = 'ZAYA_ETCD_PASSWORD_FILE'
CACERT: Final = 'ZAYA_ETCD_CACERT'
CERT: Final = 'ZAYA_ETCD_CERT'
KEY: Final = 'ZAYA_ETCD_KEY'

# Seconds for a connection, and again for each part of an answer.
REQUEST_S: Final = 2.0
# No further endpoint is asked after this.
QUESTION_S: Final = 5.0

_HOST_PORT = re.compile(r'(?P<host>\[[0-9a-fA-F:]+\]|[^\[\]:]+):(?P<port>\d+)')
_OF_THIS_MACHINE = ('localhost', '127.0.0.1', '::1')

# What etcd says of a wrong setting, and the way out.
_WRONG = {
  'invalid user ID or password': f'check {USER} and {PASSWORD_FILE}',
  'user name is empty': f'it wants a user: set {USER} and {PASSWORD_FILE}',
  'permission denied': f'grant {USER} readwrite on the prefix of --aegis.lease',
  'authentication is not enabled': f'unset {USER}',
  'HTTP request to an HTTPS server': f'set {CACERT}',
  'CERTIFICATE_VERIFY_FAILED': f'{CACERT} must hold who signed its certificate',
  'WRONG_VERSION_NUMBER': f'it speaks no TLS: unset {CACERT}',
}
# A token of before a restart, or of before a change of users.
_STALE = ('invalid auth token', 'revision of auth store is old')


class NotFoundError(Exception):
  """The lease that a request names is gone."""


class Endpoints:
  """All members; the one that answered last is asked first.

  Args:
    address: as the user gave it, for messages.
    hosts: HOST:PORT of each.
    environment: names the user and the files of secrets.

  Raises:
    StoreError: with exit code 2, if a setting is wrong.
  """

  def __init__(
    self, address: str, hosts: list[str], environment: Mapping[str, str]
  ):
    self._address, self._environment = address, environment
    self._check(hosts)
    self._members = [self._client(host) for host in hosts]
    self._first = 0
    self._lock = threading.Lock()

  def close(self) -> None:
    """Closes all connections."""
    for member in self._members:
      member.session.close()

  def ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer of the first member that has one.

    Args:
      path: of the JSON gateway, such as `/kv/txn`.
      question: may be put to several members, one after the other.

    Raises:
      NotFoundError: it names a lease that is gone.
      StoreError: none answers.
    """
    end = time.monotonic() + QUESTION_S
    causes = []
    count = len(self._members)
    for i in range(self._first, self._first + count):
      member = self._members[i % count]
      try:
        answer = self._ask_member(member, path, question)
      except (exceptions.Etcd3Exception, requests.RequestException) as error:
        text = _text(error)
        if 'lease not found' in text:
          raise NotFoundError from None
        self._raise_if_wrong(member, text)
        causes.append(f'{member.host}:{member.port}: {_short(text)}')
        if time.monotonic() >= end:
          break
      else:
        self._first = i % count
        return answer
    raise errors.StoreError(
      f'{self._address} does not answer ({"; ".join(causes)}); see that etcd '
      'runs there, and repeat the command.'
    )

  def _check(self, hosts: list[str]) -> None:
    for host in hosts:
      if not _HOST_PORT.fullmatch(host):
        raise self._wrong(f'names {host!r}, which is not HOST:PORT')
    for name in (PASSWORD_FILE, CACERT, CERT, KEY):
      if (path := self._environment.get(name)) is not None:
        try:
          pathlib.Path(path).read_bytes()
        except OSError as error:
          raise self._wrong(
            f'needs {name}={path}, which cannot be read: {error.strerror}'
          ) from error
    for one, other in ((USER, PASSWORD_FILE), (CERT, KEY), (KEY, CERT)):
      if self._environment.get(one) and not self._environment.get(other):
        raise self._wrong(f'has {one} but not {other}: set both')
    if self._environment.get(USER) and not self._environment.get(CACERT):
      for host in hosts:
        if (
          _HOST_PORT.fullmatch(host)['host'].strip('[]') not in _OF_THIS_MACHINE
        ):
          raise self._wrong(
            f'would send the password of {USER} unencrypted to {host}: set '
            f'{CACERT}'
          )

  def _client(self, host_port: str) -> etcd3gw.Etcd3Client:
    found = _HOST_PORT.fullmatch(host_port)
    get = self._environment.get
    session = requests.Session()
    # No proxy and no .netrc of the environment comes in between.
    session.trust_env = False
    if get(CACERT):
      session.verify = get(CACERT)
    if get(CERT):
      session.cert = (get(CERT), get(KEY))
    return etcd3gw.Etcd3Client(
      host=found['host'].strip('[]'),
      port=int(found['port']),
      protocol='https' if get(CACERT) else 'http',
      timeout=REQUEST_S,
      api_path='/v3/',
      session=session,
    )

  def _ask_member(
    self, member: etcd3gw.Etcd3Client, path: str, question: dict[str, Any]
  ) -> dict[str, Any]:
    user = self._environment.get(USER)
    login = member.session.headers.get('Authorization')
    if user and login is None:
      login = self._log_in(member, user, None)
    try:
      return self._post(member, path, question)
    except exceptions.Etcd3Exception as error:
      if not user or not any(text in _text(error) for text in _STALE):
        raise
    self._log_in(member, user, login)
    return self._post(member, path, question)

  def _log_in(
    self, member: etcd3gw.Etcd3Client, user: str, old: str | bytes | None
  ) -> str | bytes | None:
    """Gets a token, with the password that the file holds now.

    Args:
      member: whom to ask.
      user: name of the user.
      old: the token that is not good; nothing is done if another thread has
        replaced it.
    """
    path, headers = self._environment[PASSWORD_FILE], member.session.headers
    with self._lock:
      if headers.get('Authorization') == old:
        try:
          password = pathlib.Path(path).read_text().rstrip('\n')
        except (OSError, ValueError):
          raise self._wrong(
            f'needs {PASSWORD_FILE}={path}, which cannot be read'
          ) from None
        login = {'name': user, 'password': password}
        answer = self._post(
          member, '/auth/authenticate', login, headers={'Authorization': None}
        )
        headers['Authorization'] = answer.get('token', '')
      return headers.get('Authorization')

  def _post(
    self,
    member: etcd3gw.Etcd3Client,
    path: str,
    question: dict[str, Any],
    **more: Any,
  ) -> dict[str, Any]:
    answer = member.post(member.get_url(path), json=question, **more)
    if not isinstance(answer, dict):
      raise exceptions.Etcd3Exception('the answer is not that of etcd')
    return answer

  def _raise_if_wrong(self, member: etcd3gw.Etcd3Client, text: str) -> None:
    for sign, remedy in _WRONG.items():
      if sign in text:
        raise self._wrong(
          f'is refused by {member.host}:{member.port} ({_short(text)}); '
          f'{remedy}'
        ) from None

  def _wrong(self, what: str) -> errors.StoreError:
    return errors.StoreError(
      f'--aegis.lease={self._address} {what}.', exit_codes.USAGE
    )


def _text(error: Exception) -> str:
  """What a member, or the way to it, says."""
  text = getattr(error, 'detail_text', None) or str(error)
  try:
    return str(json.loads(text)['error'])
  except (ValueError, LookupError, TypeError):
    return text


def _short(text: str) -> str:
  """The end of a long chain of causes, in one line."""
  if 'timed out' in text and 'request timed out' not in text:
    return f'no answer in {REQUEST_S:g} s'
  # Which of both depends on whether its answer comes before it hangs up.
  if 'Remote end closed' in text or 'Connection reset' in text:
    return f'it hung up; if it speaks TLS, set {CACERT}'
  if found := re.search(r'\[Errno \d+\] ([\w ]+)', text):
    return found[1]
  return ' '.join(text.split())[-160:]

# SPDX-License-Identifier: Apache-2.0
"""Where notices go. The address has a secret: no message may quote it."""

import dataclasses
import os
import pathlib
import urllib.parse
from collections.abc import MutableMapping

from zaya_jax import config as config_lib
from zaya_jax.config import fields

_FLAG = '--aegis.notify'


def read(
  setting: str, environment: MutableMapping[str, str] | None = None
) -> str:
  """Returns the URL of --aegis.notify; '' for none.

  Args:
    setting: a URL, env:NAME or file:PATH.
    environment: of this process, from which NAME is taken out: agents and ranks
      do not inherit it.

  Raises:
    UsageError: if there is no URL of http or https.
  """
  environment = os.environ if environment is None else environment
  kind, _, name = setting.partition(':')
  shown = f'{_FLAG}={setting}' if kind in ('env', 'file') else _FLAG
  url = setting
  if kind == 'env':
    url = environment.pop(name, '').strip()
    if not url:
      raise fields.UsageError(f'{shown}: the variable {name} is not set.')
  elif kind == 'file':
    try:
      url = pathlib.Path(name).read_text(encoding='utf-8').strip()
    except (OSError, UnicodeDecodeError) as error:
      why = getattr(error, 'strerror', None) or 'it is not UTF-8'
      raise fields.UsageError(f'{shown} cannot be read: {why}.') from error
  if url and not _is_http(url):
    raise fields.UsageError(
      f'{shown} must be, or lead to, http://… or https://… without user and '
      'password; env:NAME and file:PATH keep it out of the list of processes.'
    )
  return url


def conceal(config: config_lib.Config) -> config_lib.Config:
  """The settings without the address, for agents, ranks and files."""
  aegis = dataclasses.replace(config.aegis, notify='')
  return dataclasses.replace(config, aegis=aegis)


def host(url: str) -> str:
  """The part of a URL that messages may show."""
  return urllib.parse.urlsplit(url).hostname or ''


def _is_http(url: str) -> bool:
  try:
    parts = urllib.parse.urlsplit(url)
    fits = parts.port is None or parts.port > 0
  except ValueError:  # The port is no number, or a bracket is open.
    return False
  plain = url.isascii() and url.isprintable() and not {' ', '@'} & {*url}
  return bool(
    fits and plain and parts.hostname and parts.scheme in ('http', 'https')
  )

# SPDX-License-Identifier: Apache-2.0
"""Where notices go, and that the secret in it is not told."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.notify import address
from zaya_jax.config import fields

URL = 'https://hooks.example/services/T0/SECRET'


def test_address_is_taken_from_where_it_is_said(tmp_path):
  path = tmp_path / 'hook'
  path.write_text(f'{URL}\n')
  environment = {'HOOK': URL, 'OTHER': 'x'}
  assert address.read('', {}) == ''
  assert address.read(URL, {}) == URL
  assert address.read(f'file:{path}', {}) == URL
  assert address.read('env:HOOK', environment) == URL
  assert environment == {'OTHER': 'x'}  # Ranks do not inherit it.


@pytest.mark.parametrize(
  'setting',
  [
    'ftp://hooks.example/SECRET',
    'hooks.example/SECRET',
    'https:///SECRET',
    'https://user:SECRET@hooks.example/',
    'https://hooks.example:SECRET/',
    'https://[SECRET/',
    'https://hooks.example/SECRET\r\nX: y',
    'https://hooks.example/SECRET ü',
  ],
)
def test_wrong_address_is_refused_and_not_quoted(setting, tmp_path):
  path = tmp_path / 'hook'
  path.write_text(setting)
  for told in (setting, f'file:{path}', 'env:HOOK'):
    with pytest.raises(fields.UsageError, match='--aegis.notify') as caught:
      address.read(told, {'HOOK': setting})
    assert 'SECRET' not in str(caught.value)
    assert caught.value.__cause__ is None


def test_missing_places_are_named(tmp_path):
  with pytest.raises(fields.UsageError, match='variable HOOK is not set'):
    address.read('env:HOOK', {})
  with pytest.raises(fields.UsageError, match='No such file'):
    address.read(f'file:{tmp_path}/none', {})
  (tmp_path / 'bytes').write_bytes(b'\xff')
  with pytest.raises(fields.UsageError, match='not UTF-8'):
    address.read(f'file:{tmp_path}/bytes', {})


def test_agents_and_ranks_do_not_get_it():
  config = config_lib.Config(aegis=config_lib.AegisConfig(notify=URL, port=5))
  concealed = address.conceal(config)
  assert 'SECRET' in config.to_flagfile()
  assert 'SECRET' not in concealed.to_flagfile()
  assert concealed.aegis.port == 5


def test_only_the_host_is_shown():
  assert address.host('https://hooks.example:8443/SECRET?x') == 'hooks.example'

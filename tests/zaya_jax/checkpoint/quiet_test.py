# SPDX-License-Identifier: Apache-2.0
"""What Orbax and TensorStore print beside what they raise is dropped."""

import asyncio
import gc
import logging
import sys
import types

import pytest

from zaya_jax.checkpoint import quiet


@pytest.fixture(autouse=True)
def silent():
  hook = sys.unraisablehook
  quiet.silence()
  yield
  sys.unraisablehook = hook


@pytest.mark.parametrize(
  'why, told',
  [
    ('Error writing "params.w/0" in OCDBT database', False),
    ('Error reading [tensorstore_spec=...]', False),
    ('a task of somebody else', True),
  ],
)
def test_result_that_nobody_asks_for(caplog, why, told):
  async def fail():
    raise ValueError(why)

  async def run():
    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task

  asyncio.run(run())
  gc.collect()
  assert ('never retrieved' in caplog.text) == told


def test_other_warnings_of_the_event_loop_are_told(caplog):
  logging.getLogger('asyncio').warning('slow: orbax')
  assert 'slow: orbax' in caplog.text


@pytest.mark.parametrize(
  'path, level, told',
  [
    ('/site-packages/orbax/checkpoint/x.py', logging.INFO, False),
    ('/site-packages/orbax/checkpoint/x.py', logging.WARNING, True),
    ('/site-packages/absl/x.py', logging.INFO, True),
  ],
)
def test_progress_of_orbax_is_dropped_and_its_warnings_are_not(
  path, level, told
):
  logger = logging.getLogger('absl')
  record = logger.makeRecord('absl', level, path, 1, 'news', (), None)
  assert bool(logger.filter(record)) == told
  record.exc_info = (ValueError, ValueError('x'), None)
  assert bool(logger.filter(record)) == ('/orbax/' not in path)


@pytest.mark.parametrize(
  'why, told', [('Event loop is closed', False), ('anything else', True)]
)
def test_read_that_ends_after_its_event_loop(monkeypatch, why, told):
  seen = []
  monkeypatch.setattr(sys, 'unraisablehook', seen.append)
  quiet.silence()
  quiet.silence()  # Once is enough.
  error = RuntimeError(why)
  sys.unraisablehook(types.SimpleNamespace(exc_value=error))
  assert len(seen) == told

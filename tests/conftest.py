# SPDX-License-Identifier: Apache-2.0
"""Eight CPU devices for every test, set before anything imports jax.

Programs that a test starts inherit the environment, eight devices included;
where one device matters, pass `env` without XLA_FLAGS.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import time

import pytest
from absl import flags

from tests.support import xla

if 'jax' in sys.modules:
  raise RuntimeError(
    'jax was imported before tests/conftest.py could set it up.'
  )

began = time.monotonic()

# A shell without job control starts what runs in the background with SIGINT
# ignored, and so would every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tracing makes objects by the million and hardly a cycle: looking for them as
# often as Python does by itself takes a fifth of the time.
gc.set_threshold(100_000, 20, 100)

# Each process that a test starts would compile the sources of jax anew.
sys.dont_write_bytecode = False
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = ' '.join(
  [
    os.environ.get('XLA_FLAGS', ''),
    '--xla_force_host_platform_device_count=8',
    *xla.fast_compile(),
  ]
)
# What took a moment to compile is kept for later tests and for programs that
# they start, of all processes of xdist; those of the user are not found here.
if 'PYTEST_XDIST_WORKER' not in os.environ:
  programs = tempfile.mkdtemp(prefix='zaya_programs_')
  atexit.register(shutil.rmtree, programs, ignore_errors=True)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = programs
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.1'
# What runs of tests leave in the home of their user goes with them.
os.environ['XDG_STATE_HOME'] = os.path.join(
  os.environ['JAX_COMPILATION_CACHE_DIR'], f'state_{os.getpid()}'
)
# Nobody reads where in the source an operation of a test's program was made.
os.environ['JAX_TRACEBACK_IN_LOCATIONS_LIMIT'] = '0'
# A silent broadcast of [L, D] against [B, L, D] is a bug here.
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'

# Grain reads an absl flag; outside of absl.app nobody has parsed them.
flags.FLAGS.mark_as_parsed()

# Whose files take longest: a minute each. One that came last would end alone.
LONGEST = ('model', 'ops', 'parallel', 'train')


def pytest_addoption(parser):
  parser.addoption(
    '--minutes',
    type=int,
    default=10**6,
    help='tests that would begin later than this are skipped',
  )


def pytest_runtest_setup(item):
  minutes = item.config.getoption('--minutes')
  if time.monotonic() > began + 60 * minutes:
    pytest.skip(f'it would begin after --minutes={minutes}')


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: item.path.parent.name not in LONGEST)

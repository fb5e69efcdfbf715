# SPDX-License-Identifier: Apache-2.0
"""Eight CPU devices for every test, set before anything imports jax.

Programs that a test starts inherit the environment, eight devices included;
where one device matters, pass `env` without XLA_FLAGS.
"""

import os
import sys

from absl import flags

if 'jax' in sys.modules:
  raise RuntimeError(
    'jax was imported before tests/conftest.py could set it up.'
  )

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = ' '.join(
  [
    os.environ.get('XLA_FLAGS', ''),
    '--xla_force_host_platform_device_count=8',
    # Tests compile far longer than they compute: half of the time is saved.
    '--xla_backend_optimization_level=0',
  ]
)
# A silent broadcast of [L, D] against [B, L, D] is a bug here.
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'

# Grain reads an absl flag; outside of absl.app nobody has parsed them.
flags.FLAGS.mark_as_parsed()

# SPDX-License-Identifier: Apache-2.0
"""Supervises ranks that train nothing.

python -m benchmarks.fault_pairs.supervise [--FLAG ...]
"""

import sys

from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import supervisor
from zaya_jax.checkpoint import errors


def main() -> int:
  """Supervises; the exit code, as of `--mode=supervise`."""
  config = config_lib.Config.parse(sys.argv[1:])
  rank = (sys.executable, '-m', 'benchmarks.fault_pairs.rank')
  try:
    return supervisor.supervise(config, rank)
  except (config_lib.UsageError, errors.CheckpointError) as error:
    print(error, file=sys.stderr)
    return error.exit_code


if __name__ == '__main__':
  sys.exit(main())

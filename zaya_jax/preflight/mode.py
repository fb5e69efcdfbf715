# SPDX-License-Identifier: Apache-2.0
"""--mode=preflight: is this node fit, and if not, why."""

import os
import platform
import time

from zaya_jax import config as config_lib
from zaya_jax.preflight import examine, table
from zaya_jax.runtime import rank


def main(config: config_lib.Config) -> int:
  """Checks this node, prints a table and writes --output, if it is given.

  In several processes their nodes, and the links between them.

  Returns:
    The exit code: 0 if the node is fit, 3 if it is not.

  Raises:
    MachineFileError: if --preflight.machine is no such file, or is damaged.
  """
  if rank.find(config.distributed, os.environ).processes > 1:
    # Imports jax, of which rules alone have no need.
    from zaya_jax.preflight import across

    return across.main(config)
  start = time.monotonic()
  node, checks = examine.this_node(config)
  if not node.tags() & {'gpu'}:
    print('There is no GPU here: the rules for GPUs were left out.')
  return table.conclude(config.output, platform.node(), checks, start)

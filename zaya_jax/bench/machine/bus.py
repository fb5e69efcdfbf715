# SPDX-License-Identifier: Apache-2.0
"""Bus bandwidth over algorithm bandwidth, of each collective.

After nccl-tests (doc/PERFORMANCE.md): the share of the message that each device
has to send, which makes rates comparable with the speed of a link whatever the
number of devices.
"""

from collections.abc import Callable, Mapping

FACTORS: Mapping[str, Callable[[int], float]] = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'reduce-scatter': lambda n: (n - 1) / n,
  'all-gather': lambda n: (n - 1) / n,
  'all-to-all': lambda n: (n - 1) / n,
  'broadcast': lambda n: 1.0,
  'permute': lambda n: 1.0,
}

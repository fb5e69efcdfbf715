# SPDX-License-Identifier: Apache-2.0
"""What jax sees of the devices, as one JSON object.

    python -m zaya_jax.preflight.contact.device

A process of its own, which can be killed when a driver hangs.
"""

import json
import os
import sys
from importlib import metadata

_FILES = ('/dev/kfd', '/dev/nvidiactl')  # Of AMD's and NVIDIA's drivers.
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def look() -> dict[str, object]:
  """Chip, platform, number, memory, versions, and why HIP kernels are away."""
  import jax

  from ops import dispatch, native

  devices = jax.devices()
  stats = devices[0].memory_stats() or {}
  return {
    'chip': devices[0].device_kind,
    'platform': dispatch.platform(),
    'devices': len(devices),
    'memory': stats.get('bytes_limit', 0),
    'driver': devices[0].client.platform_version.splitlines()[0],
    'has_gpu': any(map(os.path.exists, _FILES)),
    'library': native.unavailable('residual_rms_norm') or '',
    'versions': {
      'python': sys.version.split()[0],
      **{name: metadata.version(name) for name in _PACKAGES},
      **{d.name: d.version for d in metadata.distributions() if _plugin(d)},
    },
  }


def _plugin(distribution: metadata.Distribution) -> bool:
  name = (distribution.name or '').lower()
  return name.startswith(('jax-cuda', 'jax-rocm', 'jax_cuda', 'jax_rocm'))


if __name__ == '__main__':
  print(json.dumps(look()))

# SPDX-License-Identifier: Apache-2.0
"""Memory that forgets: one bit of the copy that one device holds."""

import jax
import numpy as np


def flip(array: jax.Array, place: int, rng: np.random.Generator) -> jax.Array:
  """The array, with a random bit flipped on one device alone."""

  def change(data):
    words = data.reshape(-1).view(np.uint8)
    words[rng.integers(words.size)] ^= np.uint8(1 << rng.integers(8))
    return data

  return on_one(array, place, change)


def on_one(array: jax.Array, place: int, change) -> jax.Array:
  """The array, with `change` of a NumPy copy in the memory of one device."""
  parts = {s.device: s.data for s in array.addressable_shards}
  devices = list(array.sharding.mesh.devices.flat)
  bad = change(np.array(parts[devices[place]]).reshape(-1)).reshape(
    parts[devices[place]].shape
  )
  parts[devices[place]] = jax.device_put(bad, devices[place])
  return jax.make_array_from_single_device_arrays(
    array.shape, array.sharding, [parts[device] for device in devices]
  )

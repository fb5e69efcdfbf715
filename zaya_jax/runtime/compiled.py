# SPDX-License-Identifier: Apache-2.0
"""The compiled training step, kept for when a supervised run starts again.

JAX's own cache holds what XLA makes of a program, which a restart still has to
trace and to lower; and of several processes on CPUs all but process 0 find
nothing there, as its key names the devices of one. Here the step is found
before it is traced, so the key has to hold whatever the program depends on.

It lies in JAX's folder of compiled programs and is trusted as that is: what it
holds is executed.
"""

import contextlib
import hashlib
import os
import pathlib
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from ops import dispatch
from zaya_jax.runtime import processes, rank

_KEPT = 8  # Programs of one process; the oldest are removed.
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
_ENVIRONMENT = ('JAX_', 'XLA_', 'TF_')
# They say where a process is, not what it computes.
_PLACES = ('JAX_COMPILATION_CACHE_DIR', 'JAX_COORDINATOR_ADDRESS')


class Program:
  """Where one program of this process is kept.

  Args:
    settings: all that the program was made of, with a `repr` of its own.
    args: of the program, as it will be called.
    devices: that it runs on, of all processes.

  Attributes:
    path: of the file; None: a supervisor has not started this process, or JAX
      keeps no programs either.
  """

  def __init__(self, settings: Any, args: Any, devices: Sequence[jax.Device]):
    folder = jax.config.jax_compilation_cache_dir
    self.path, self._devices, self._data = None, devices, b''
    if folder and rank.place():
      name = f'zaya_jax-{_key(settings, args, devices)}-{processes.process()}'
      self.path = pathlib.Path(folder, name)

  def load(self) -> jax.stages.Compiled | None:
    """The program, where all processes have kept theirs; else None.

    All or none: XLA lets the processes that compile share the work. It is taken
    away until `save`: one that cannot be executed does not fail a second run.
    """
    program = self._load() if self.path else None
    if all(processes.all_say(program is not None)):
      return program
    self._data = b''
    return None

  def _load(self) -> jax.stages.Compiled | None:
    try:
      self._data = self.path.read_bytes()
      self.path.unlink()
    except FileNotFoundError:
      return None
    digest, data = self._data[:32], self._data[32:]
    if hashlib.sha256(data).digest() != digest:  # A disk that lost a part.
      return None
    program, choices = pickle.loads(data)
    dispatch.remember(choices)
    try:
      return serialize_executable.deserialize_and_load(
        *program, execution_devices=self._devices
      )
    except jax.errors.JaxRuntimeError:  # Of another driver, say.
      return None

  @contextlib.contextmanager
  def compiling(self) -> Iterator[None]:
    """Inside, JAX's own cache is not used on CPUs.

    What XLA has read from there it cannot write whole (jaxlib 0.10: "Function
    x not found" when it is executed after that).
    """
    if not self.path or self._devices[0].platform != 'cpu':
      yield
      return
    jax.config.update('jax_enable_compilation_cache', False)
    compilation_cache.reset_cache()  # It remembers whether it is used.
    try:
      yield
    finally:
      jax.config.update('jax_enable_compilation_cache', True)
      compilation_cache.reset_cache()

  def take(self, program: jax.stages.Compiled) -> None:
    """Remembers a program that was compiled, if it can be kept.

    Before it is executed: XLA:CPU cannot write some programs after that.
    """
    if not self.path:
      return
    try:
      content = serialize_executable.serialize(program), dispatch.choices()
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
      return  # Not every backend can.
    data = pickle.dumps(content)
    self._data = hashlib.sha256(data).digest() + data

  def save(self) -> None:
    """Keeps the program that was loaded or taken, once it has run."""
    if not self._data:
      return
    with contextlib.suppress(OSError):  # Nobody misses it but a restart.
      self.path.parent.mkdir(parents=True, exist_ok=True)
      with tempfile.NamedTemporaryFile(
        dir=self.path.parent, prefix='.', delete=False
      ) as file:
        file.write(self._data)
      os.replace(file.name, self.path)
      self._remove_old()

  def _remove_old(self) -> None:
    process = self.path.name.rpartition('-')[2]
    mine = self.path.parent.glob(f'zaya_jax-*-{process}')
    for path in sorted(mine, key=os.path.getmtime)[:-_KEPT]:
      path.unlink(missing_ok=True)


def _key(settings: Any, args: Any, devices: Sequence[jax.Device]) -> str:
  """A name of all that the program depends on, in hexadecimal digits."""
  arrays = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), args)
  versions = [metadata.version(name) for name in _PACKAGES]
  environment = [
    f'{name}={value}'
    for name, value in sorted(os.environ.items())
    if name.startswith(_ENVIRONMENT) and name not in _PLACES
  ]
  kinds = [(device.id, device.device_kind) for device in devices]
  driver = devices[0].client.platform_version
  facts = settings, arrays, versions, environment, kinds, driver
  digest = hashlib.sha256(repr(facts).encode())
  here = pathlib.Path(__file__).parents[1]
  for root in (here, here.parent / 'ops'):
    for path in sorted(root.rglob('*.py')):
      digest.update(f'{path.relative_to(root)}'.encode())
      digest.update(path.read_bytes())
    for path in sorted(root.rglob('*.so')):  # Our kernels, where built.
      facts = path.relative_to(root), path.stat().st_mtime_ns
      digest.update(repr(facts).encode())
  return digest.hexdigest()

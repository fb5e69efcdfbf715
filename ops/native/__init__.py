# SPDX-License-Identifier: Apache-2.0
"""The kernels in HIP: finds their library and calls them through the XLA FFI.

What a kernel is and how one is added: README.md beside this file.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from ops import dispatch

# Of the handlers' arguments; library.hip has the same number.
INTERFACE = '3'
# dispatch.platform() -> the name that XLA has for it.
_PLATFORMS = {'cpu': 'cpu', 'cuda': 'CUDA', 'rocm': 'ROCM'}
_FOLDER = pathlib.Path(__file__).parent


def unavailable(kernel: str) -> str | None:
  """Why the kernel cannot be called here, a clause; None: it can be."""
  return _load(_path(), dispatch.platform()).unavailable(kernel)


def call(
  kernel: str,
  results: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct],
  *args: jax.Array,
  aliases: dict[int, int] | None = None,
  **attributes: Any,
) -> Any:
  """Calls the handler zaya_KERNEL of the library.

  Args:
    kernel: its name.
    results: shapes and types of what it writes.
    *args: arrays.
    aliases: argument -> result that may have its memory, if it is not used
      afterwards; it is copied before if it is.
    **attributes: static numbers, of NumPy types: np.float32(1).

  Raises:
    dispatch.UnsupportedError: if it is not available.
  """
  if reason := unavailable(kernel):
    raise dispatch.UnsupportedError(f'ops.native: {kernel}: {reason}.')
  target = _load(_path(), dispatch.platform()).target(kernel)
  run = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
  return run(*args, **attributes)


def called() -> list[str]:
  """The kernels whose handlers are registered in this process."""
  return sorted(_load(_path(), dispatch.platform()).registered)


def register(kernels: Iterable[str]) -> None:
  """Registers handlers, for a program that was traced by another process."""
  for kernel in kernels:
    _load(_path(), dispatch.platform()).target(kernel)


def fingerprint() -> str:
  """Of the library and where it is; '': there is none."""
  path = _path()
  if not path.exists():
    return ''
  return f'{path.resolve()} {hashlib.sha256(path.read_bytes()).hexdigest()}'


def _path() -> pathlib.Path:
  """Of the library: ZAYA_OPS_LIBRARY, or where the Makefile leaves it."""
  built = _FOLDER / 'build' / dispatch.platform() / 'libzaya_ops.so'
  return pathlib.Path(os.environ.get('ZAYA_OPS_LIBRARY') or built)


class _Library:
  """One file, opened for one platform."""

  def __init__(self, path: pathlib.Path, platform: str):
    self._platform = platform
    self._prefix = f'zaya_ops:{path.resolve()}:'
    self.registered: set[str] = set()
    self._functions, self._fault = _open(path, platform)

  def unavailable(self, kernel: str) -> str | None:
    if self._fault is None and not hasattr(self._functions, f'zaya_{kernel}'):
      return f'the library has no such kernel; {_build(self._platform)}'
    return self._fault

  def target(self, kernel: str) -> str:
    """Registers the handler and returns its name, which is of this file."""
    name = self._prefix + kernel
    if kernel not in self.registered:
      handler = jax.ffi.pycapsule(getattr(self._functions, f'zaya_{kernel}'))
      jax.ffi.register_ffi_target(
        name, handler, platform=_PLATFORMS[self._platform]
      )
      self.registered.add(kernel)
    return name


_load = functools.cache(_Library)


def _build(platform: str) -> str:
  return f'build it: make -C {_FOLDER} {platform}'


def _open(path, platform) -> tuple[ctypes.CDLL | None, str | None]:
  """The functions of the library, or the reason why there are none."""
  if not path.exists():
    return None, f'no {path}; {_build(platform)}'
  try:
    library = ctypes.CDLL(str(path))
    describe = library.zaya_ops_built_for
  except (OSError, AttributeError) as error:
    return None, f'{path} is no library of zaya_ops ({error})'
  describe.restype = ctypes.c_char_p
  interface, version, target, arch = describe().decode().split()
  here = _arch(platform)
  wanted = (
    ('interface ' + interface, 'interface ' + INTERFACE),
    ('jax ' + version, 'jax ' + jax.__version__),
    (target, platform),
    (arch, here if here and platform != 'cpu' else arch),
  )
  for built, needed in wanted:
    if built != needed:
      fault = f'{path} is built for {built}, this is {needed}'
      return None, f'{fault}; {_build(platform)}'
  return library, None


def _arch(platform: str) -> str | None:
  """Of the devices at hand; None where they are not what is compiled for."""
  device = jax.devices()[0]
  if device.platform == 'cpu':
    return None
  # '9.0' on CUDA, 'gfx942:sramecc+:xnack-' on ROCm; what is not said, fits.
  arch = str(getattr(device, 'compute_capability', '')).split(':')[0]
  if platform == 'cuda':
    arch = 'sm_' + arch.replace('.', '')
  return arch if arch.startswith(('sm_', 'gfx')) else None

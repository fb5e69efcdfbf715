# SPDX-License-Identifier: Apache-2.0
"""Folders of which some tensors have few bits, read as if they were float32."""

from collections.abc import Mapping
from typing import Any

from zaya_jax.hub.quantized import formats, tensor
from zaya_jax.hub.tensors import errors, weights


def resolve(
  file: str, given: Mapping[str, Any], tensors: dict[str, weights.Tensor]
) -> dict[str, Any]:
  """Tensors by the names that they have where nothing is quantized.

  Args:
    file: the path of config.json, for error messages.
    given: its content.
    tensors: of `weights.find`.

  Raises:
    FolderError: if scales are missing, or the format is another one.
  """
  narrow = [n for n, t in tensors.items() if t.dtype not in weights.WIDE]
  settings = given.get(formats.SETTINGS)
  if settings is None:
    if narrow:
      raise errors.FolderError(
        f'{file} has no {formats.SETTINGS}, and tensor {narrow[0]} is of type '
        f'{tensors[narrow[0]].dtype}; the folder is of another program, or '
        'its config.json was changed.'
      )
    return dict(tensors)
  method = settings.get('quant_method') if type(settings) is dict else None
  if method not in formats.METHODS:
    raise errors.FolderError(
      f'{file}: quant_method of {formats.SETTINGS} is {method!r}; only '
      f'{", ".join(formats.METHODS)} can be read.'
    )
  parts = tensor.Parts(file, settings, dict(tensors))
  return parts.resolved(formats.METHODS[method])

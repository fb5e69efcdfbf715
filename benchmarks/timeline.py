# SPDX-License-Identifier: Apache-2.0
"""What GPUs run while a program is traced, and what their messages hide behind.

Read from the profiler of jax; a CPU has no such timeline.
"""

import pathlib
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import jax

from zaya_jax.report import kernels

Span = kernels.Span


def of(run: Callable[[], Any]) -> dict[str, list[Span]]:
  """What each GPU of this process runs during `run`, by its name.

  Args:
    run: traced; it has to wait for what it starts.
  """
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      run()
    found = kernels.spans(pathlib.Path(folder))
    return {name: all_ for name, all_ in found.items() if 'GPU' in name}


def network(spans: Iterable[Span]) -> dict[str, float]:
  """Seconds of one GPU's messages, and of those beside which it computes.

  A message lasts from the start of its kernel to its end, with what it waits
  for the other devices. Copies are no computation.

  Args:
    spans: of one GPU.

  Returns:
    network_s: in messages, those at one time counted once; hidden_s: of these,
    while another kernel runs; compute_s: in other kernels, counted once.
  """
  sent, computed = [], []
  for span in spans:
    if 'nccl' in span.name.lower():
      sent.append(span)
    elif 'memcpy' not in span.name.lower():
      computed.append(span)
  sent, computed = _union(sent), _union(computed)
  return {
    'network_s': _length(sent),
    'hidden_s': _length(_both(sent, computed)),
    'compute_s': _length(computed),
  }


def _union(spans: Iterable[Span]) -> list[tuple[float, float]]:
  """The spans as intervals that do not overlap, in their order."""
  found: list[tuple[float, float]] = []
  for _, start, end in sorted(spans, key=lambda span: span.start):
    if found and start <= found[-1][1]:
      found[-1] = found[-1][0], max(end, found[-1][1])
    else:
      found.append((start, end))
  return found


def _both(first, second) -> list[tuple[float, float]]:
  """Where intervals of one list and of the other overlap."""
  found, i, j = [], 0, 0
  while i < len(first) and j < len(second):
    start = max(first[i][0], second[j][0])
    end = min(first[i][1], second[j][1])
    if start < end:
      found.append((start, end))
    if first[i][1] < second[j][1]:
      i += 1
    else:
      j += 1
  return found


def _length(intervals) -> float:
  return sum(end - start for start, end in intervals) / 1e9

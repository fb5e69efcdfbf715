# SPDX-License-Identifier: Apache-2.0
"""What devices ran while steps were traced: time by kind of kernel.

A trace is that of JAX's profiler. Of GPUs it has streams of kernels; of a CPU
the operations of XLA by thread, one inside another.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zaya_jax.runtime import durable, run_files

_LONGEST = 15  # Kernels by name.
_LETTERS = 80  # Of a name.
_TRACES = '*.xplane.pb'
# The first that a name matches; ours begin with the name of their operation.
_KINDS = (
  ('attention', r'^attention|flash|fmha|sdpa'),
  ('CCA', r'^cca'),
  ('experts', r'^experts|grouped_matmul|ragged'),
  ('router', r'^router'),
  ('cross-entropy', r'^cross_entropy'),
  ('Muon', r'^symmetric_matmul|newton_schulz|^muon'),
  ('norms', r'rms_norm'),
  (
    'messages between devices',
    r'nccl|rccl|all-?_?reduce|all-?_?gather|reduce-?_?scatter|all-?_?to-?_?all'
    r'|collective|partition-id',
  ),
  ('copies', r'memcpy|memset|copy|transpose|bitcast'),
  (
    'products of matrices',
    r'nvjet|gemm|cublas|cutlass|xmma|^cijk|^dot|matmul|convolution|ynn',
  ),
  ('sorts, gathers, scatters', r'sort|scatter|gather|slice'),
  (
    'elementwise and reductions',
    r'fusion|^wrapped_|reduce|broadcast|convert|select|add|multiply|rng|iota',
  ),
  ('loops and branches', r'^(while|call|conditional)'),
  ('other', ''),
)


class Span(NamedTuple):
  """A kernel or copy on one stream; both times in nanoseconds."""

  name: str
  start: float
  end: float


def kind(name: str) -> str:
  """The kind of a kernel."""
  return next(k for k, rule in _KINDS if re.search(rule, name, re.I))


def spans(folder: pathlib.Path) -> dict[str, list[Span]]:
  """What each device ran, by its name, from the one trace in a folder.

  On a CPU an operation counts without those inside it, as one span that is so
  much shorter.
  """
  import jax  # A second, which a page without a trace does not take.

  [path] = folder.rglob(_TRACES)
  planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
  found = {
    plane.name: [
      Span(event.name, event.start_ns, event.start_ns + event.duration_ns)
      for line in plane.lines
      if line.name.startswith('Stream')
      for event in line.events
    ]
    for plane in planes
    if '/device:GPU' in plane.name
  }
  return found or {
    plane.name: [span for line in plane.lines for span in _alone(line.events)]
    for plane in planes
    if plane.name == '/host:CPU'
  }


def summary(devices: Iterable[list[Span]], steps: int) -> dict[str, Any]:
  """Time of a step by kind of kernel and of the longest kernels by name.

  Args:
    devices: what each of them ran.
    steps: that were traced.

  Returns:
    devices; span_s: from the first start to the last end of a step; kinds and
    longest: rows of name, seconds, share and calls, of a step and a device.
  """
  found = [of_one for of_one in devices if of_one]
  number = max(1, len(found)) * steps
  every = [span for of_one in found for span in of_one]
  lengths = [
    max(s.end for s in of_one) - min(s.start for s in of_one)
    for of_one in found
  ]
  return {
    'devices': len(found),
    'steps': steps,
    'span_s': sum(lengths) / 1e9 / number,
    'kinds': _rows(((kind(span.name), span) for span in every), number),
    'longest': _rows(((span.name[:_LETTERS], span) for span in every), number)[
      :_LONGEST
    ],
  }


def summarise(run_dir: str) -> None:
  """Writes a summary beside each trace of a run that has none yet."""
  for folder, steps in run_files.profiles(run_dir):
    place = folder / run_files.SUMMARY
    if not place.exists() and any(folder.rglob(_TRACES)):
      found = summary(spans(folder).values(), len(steps))
      found |= {'first': steps[0], 'last': steps[-1]}
      durable.replace(place, json.dumps(found).encode())


def read(run_dir: str) -> list[dict[str, Any]]:
  """The summaries of a run, by step."""
  return [
    json.loads((folder / run_files.SUMMARY).read_text())
    for folder, _ in run_files.profiles(run_dir)
    if (folder / run_files.SUMMARY).exists()
  ]


def _alone(events: Iterable[Any]) -> Iterator[Span]:
  """The operations of a thread, each without what others take inside it."""
  known = [e for e in events if any(name == 'hlo_op' for name, _ in e.stats)]
  known.sort(key=lambda event: (event.start_ns, -event.duration_ns))
  inner = [0.0] * len(known)
  around: list[int] = []
  for i, event in enumerate(known):
    while around and _end(known[around[-1]]) <= event.start_ns:
      around.pop()
    if around:
      inner[around[-1]] += event.duration_ns
    around.append(i)
  for event, taken in zip(known, inner, strict=True):
    yield Span(event.name, event.start_ns, _end(event) - taken)


def _end(event: Any) -> float:
  return event.start_ns + event.duration_ns


def _rows(named: Iterable[tuple[str, Span]], number: int) -> list[list[Any]]:
  """Name, seconds, share of all and calls; what takes longest first."""
  seconds: dict[str, float] = {}
  calls: dict[str, int] = {}
  for name, span in named:
    seconds[name] = seconds.get(name, 0.0) + (span.end - span.start) / 1e9
    calls[name] = calls.get(name, 0) + 1
  total = sum(seconds.values()) or 1.0
  return [
    [name, took / number, took / total, calls[name] / number]
    for name, took in sorted(seconds.items(), key=lambda item: -item[1])
  ]

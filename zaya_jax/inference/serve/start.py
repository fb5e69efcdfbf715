# SPDX-License-Identifier: Apache-2.0
"""From flags to an engine that works."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from zaya_jax import config as config_lib
from zaya_jax.hub import packing
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.inference import load as load_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.inference.decoding import pieces as pieces_lib
from zaya_jax.inference.decoding import slots as slots_lib
from zaya_jax.inference.serve import engine as engine_lib


def model(config: config_lib.Config) -> model_lib.Model:
  """The model of `--source`, with its weights for decoding alone.

  Raises:
    UsageError: if there is none, it has no tokenizer, or `--mesh.context` asks
      for several devices.
    CheckpointError: if it is damaged.
  """
  if config.mesh.context > 1:
    raise config_lib.UsageError(
      f'--mesh.context={config.mesh.context}: --mode={config.mode} runs on one '
      'device; leave it out.'
    )
  source = config.source or config.run_dir
  found = load_lib.load(source, config.restore, choice_lib.given(config))
  if found.tokenizer is None:
    raise config_lib.UsageError(
      f'--source={source} has no tokenizer; put a tokenizer.json into its '
      'folder.'
    )
  lean = dataclasses.replace(found, on_note=note).text_only()
  if line := packing.note(lean.decoder.weights):
    note(line)
  return lean


def context(of: model_lib.Model, settings: config_lib.ServeConfig) -> int:
  """Tokens of a prompt and its continuation together, at most."""
  most = of.max_positions or settings.context
  if settings.context > most:
    note(
      f'note: the context is {most:,} tokens, as the model was made for '
      f'(max_position_embeddings), not --serve.context={settings.context}.'
    )
  return min(settings.context, most)


@contextlib.contextmanager
def running(
  of: model_lib.Model,
  size: int,
  settings: config_lib.ServeConfig,
  scores: bool = True,
) -> Iterator[engine_lib.Engine]:
  """An engine whose programs are compiled; it ends with the block.

  What only some texts need is compiled while it works.

  Args:
    of: the model.
    size: tokens of a slot.
    settings: of the slots.
    scores: whether anybody asks how likely the tokens of a prompt are.
  """
  slots = slots_lib.Slots(
    of.decoder,
    settings.slots,
    size,
    of.stop_ids,
    pieces_lib.SIZES,
    settings.prefixes,
  )
  slots.warm()
  engine = engine_lib.Engine(slots, of.tokenizer, settings.queue)
  engine.start()
  ended = threading.Event()
  compiler = threading.Thread(
    target=_compile, args=(slots.rest(scores), ended), name='compiler'
  )
  compiler.start()
  try:
    yield engine
  finally:
    ended.set()
    engine.close()
    # The program that it is about; a process must not end in its middle.
    compiler.join()


def _compile(
  programs: Sequence[Callable[[], None]], ended: threading.Event
) -> None:
  """Compiles one program after the other, until it has ended."""
  for program in programs:
    if ended.is_set():
      return
    program()


def note(line: str) -> None:
  """Says something on stderr."""
  print(line, file=sys.stderr, flush=True)

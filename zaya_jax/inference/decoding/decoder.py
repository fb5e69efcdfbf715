# SPDX-License-Identifier: Apache-2.0
"""Token after token: prompts into a cache, then one compiled step for all.

Rows of a batch are padded on the left. Lengths are rounded up, so that a few
programs serve all of them. The step is compiled once and reused for every
token, and its cache is donated. On accelerators a program takes several steps,
and the next one is started before the tokens of this one are read: the device
never waits for Python, and XLA records its kernels as a graph that it replays
(a graph whose buffers move, as those of single steps do, is recorded anew each
time, which takes longer than the step).
"""

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import network, programs
from zaya_jax.parallel import mesh as mesh_lib

# Prompts are padded to a power of two of at least this, and room for new
# tokens to a multiple.
_BUCKET = 32
_LARGE = 256  # Larger caches are a multiple of this.
_CHUNK_TOKENS = 8192  # Of a batch, that go through the network at once.
_STEPS = 16  # Of a program, on accelerators; divides _BUCKET.

# A small model on a CPU has written its text before XLA has optimized it.
_SMALL = 2**22  # Parameters.
UNOPTIMIZED: dict[str, str | bool] = {'xla_backend_optimization_level': '0'}

# Compiled for all decoders: training makes one anew for every sample.
_programs: dict[Any, Any] = {}


@dataclasses.dataclass
class Speed:
  """What one call of `Decoder.tokens` took.

  Attributes:
    prompt_tokens: of all rows, without padding.
    new_tokens: of all rows, those that were computed in vain included.
    compile_s: seconds of compiling.
    prefill_s: seconds until the cache holds the prompt, without compiling.
    decode_s: seconds of the new tokens.
  """

  prompt_tokens: int = 0
  new_tokens: int = 0
  compile_s: float = 0.0
  prefill_s: float = 0.0
  decode_s: float = 0.0

  def __str__(self) -> str:
    rate = lambda tokens, seconds: f'{tokens / max(seconds, 1e-9):,.0f}'
    return (
      f'prompt {self.prompt_tokens:,} tokens, '
      f'{rate(self.prompt_tokens, self.prefill_s)} per second; '
      f'new {self.new_tokens:,} tokens, '
      f'{rate(self.new_tokens, self.decode_s)} per second; '
      f'compiling took {self.compile_s:.1f} s'
    )


class Decoder:
  """A network with its weights laid out for decoding.

  Args:
    config: its shape.
    params: nested dict of arrays.
    buffers: nested dict, the balancing bias.
    vocab_size: ids below this are tokens; the rest only pads the embedding.
    on_note: told when something long begins.
    context: devices among which the rows of the cache are divided.

  Attributes:
    about: what its programs depend on.
    weights: of `network.prepare`.
    speed: of the newest call of `tokens`.

  Raises:
    UsageError: if there are fewer devices than `context`.
  """

  def __init__(
    self,
    config: config_lib.ModelConfig,
    params: dict[str, Any],
    buffers: dict[str, Any],
    vocab_size: int | None = None,
    on_note: Callable[[str], None] = lambda note: None,
    context: int = 1,
  ):
    self.on_note = on_note
    self.about = programs.About(
      config=config,
      vocab_size=vocab_size or config.vocab_size,
      steps=1 if dispatch.platform() == 'cpu' else _STEPS,
      mesh=mesh_lib.make_context_mesh(context) if context > 1 else None,
    )
    self._options = compiler_options(params)
    quick = self._options is not None
    self.weights = _prepare(quick)(config, params, buffers)
    if self.about.mesh:
      everywhere = mesh_lib.sharding(self.about.mesh)
      self.weights = jax.device_put(self.weights, everywhere)
    # The same model has other arrays in another type, or of few bits.
    self._kinds = _kinds(self.weights)
    self.speed = Speed()  # Of the newest call.

  def tokens(
    self,
    rows: Sequence[np.ndarray],
    max_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    no_repeat: int = 0,
    seed: int = 0,
  ) -> Iterator[np.ndarray]:
    """Yields the next token of each row, [B] int32, `max_tokens` times.

    Args:
      rows: ids of each prompt, [L] int, not empty.
      max_tokens: tokens to add.
      temperature: 0: the likeliest token.
      top_p: samples from the likeliest tokens of this total probability.
      no_repeat: no sequence of this many tokens comes twice; 0: any may.
      seed: of the samples.
    """
    self.speed = speed = Speed(prompt_tokens=sum(map(len, rows)))
    key = jax.random.key(seed)
    sample = sample_of(temperature, top_p)
    start = time.perf_counter()
    # The last token of a prompt is the first that a step is given.
    last_B = np.array([row[-1] for row in rows], np.int32)
    state = self._prefill([row[:-1] for row in rows], max_tokens)
    jax.block_until_ready(state)
    speed.prefill_s = time.perf_counter() - start - speed.compile_s
    state |= {'tokens': jnp.asarray(last_B), 'key': key}
    if not no_repeat:
      del state['seen']
    step = self.compiled(programs.steps, (state, sample), 0, no_repeat)
    start = time.perf_counter()
    running = collections.deque()
    for begin in range(0, max_tokens, self.about.steps):
      next_NB, state = step(self.weights, state, sample)
      running.append((next_NB, min(self.about.steps, max_tokens - begin)))
      # The device is busy with these while the ones before are looked at.
      if len(running) > 1:
        yield from self._read(running, start)
    while running:
      yield from self._read(running, start)

  def _read(self, running, start):
    """Waits for the oldest of the running programs and yields its tokens."""
    next_NB, count = running.popleft()
    next_NB = np.asarray(next_NB)
    self.speed.decode_s = time.perf_counter() - start
    self.speed.new_tokens += next_NB.size
    yield from next_NB[:count]

  def _prefill(self, rows, max_tokens):
    """The cache after some tokens of each row, and these tokens."""
    batch = 1 << (len(rows) - 1).bit_length()
    chunk = max(128, _CHUNK_TOKENS // batch // (16 if self.about.mesh else 1))
    tokens_BL, mask_BL = left_pad(rows, chunk)
    length = tokens_BL.shape[1]
    cache = self._new_cache(len(rows), length + max_tokens)
    for begin in range(0, length, chunk):
      part = (
        jnp.asarray(tokens_BL[:, begin : begin + chunk]),
        jnp.asarray(mask_BL[:, begin : begin + chunk]),
      )
      program = self.compiled(programs.chunk, (*part, cache), 2)
      cache = program(self.weights, *part, cache)
    seen_BS = np.full(cache.valid.shape, -1, np.int32)
    seen_BS[:, :length] = np.where(mask_BL, tokens_BL, -1)
    return {'cache': cache, 'seen': jnp.asarray(seen_BS)}

  def _new_cache(self, batch, size):
    """An empty cache with room for `size` tokens, on all devices."""
    size = _round_up(size, _BUCKET if size <= _LARGE else _LARGE)
    if not self.about.mesh:
      return network.init_cache(self.about.config, self.weights, batch, size)
    size = _round_up(size, self.about.mesh.size)
    init = lambda w: network.init_cache(self.about.config, w, batch, size)
    specs = _specs(jax.eval_shape(init, self.weights))
    with jax.set_mesh(self.about.mesh):
      return jax.jit(init, out_shardings=specs)(self.weights)

  def compiled(self, function, args, state, *how):
    """The program of a function for the shapes of its arguments.

    Args:
      function: of (decoder, weights, *args).
      args: arrays in any tree.
      state: index of the argument that holds the cache: it is donated, and
        comes back as the last result.
      *how: last arguments of the function, of which it is compiled.
    """
    key = (function, self.about, self._kinds, how, _kinds(args))
    if key not in _programs:
      start = time.perf_counter()
      self.on_note(f'compiling {programs.NAMES[function]} ...')
      run = lambda *arrays: function(self.about, *arrays, *how)
      if self.about.mesh:
        specs = [_specs(arg) for arg in args]
        out = specs[state]
        run = jax.shard_map(
          run,
          mesh=self.about.mesh,
          in_specs=(mesh_lib.spec(), *specs),
          out_specs=out
          if function is programs.chunk
          else (mesh_lib.spec(), out),
        )
      # Behind the weights.
      lowered = jax.jit(run, donate_argnums=state + 1).lower(
        self.weights, *args
      )
      _programs[key] = lowered.compile(compiler_options=self._options)
      self.speed.compile_s += time.perf_counter() - start
    return _programs[key]


def _kinds(tree):
  """What a program depends on of its arguments; may be a key of a dict."""
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


@functools.cache
def _prepare(quick):
  options = UNOPTIMIZED if quick else None
  return jax.jit(network.prepare, static_argnums=0, compiler_options=options)


def compiler_options(params: Any) -> dict[str, str | bool] | None:
  """XLA's for decoding with these parameters; None: its own."""
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  quick = dispatch.platform() == 'cpu' and size < _SMALL
  return UNOPTIMIZED if quick else None


def sample_of(temperature: float, top_p: float) -> dict[str, jax.Array]:
  """How `sampling.choose` samples; only what is needed is compiled."""
  if temperature <= 0:
    return {}
  sample = {'temperature': jnp.float32(temperature)}
  if top_p < 1:
    sample['top_p'] = jnp.float32(top_p)
  return sample


def left_pad(
  rows: Sequence[np.ndarray], chunk: int
) -> tuple[np.ndarray, np.ndarray]:
  """[B, L] tokens and mask; L a power of two, above `chunk` a multiple."""
  longest = max(map(len, rows))
  length = max(_BUCKET, 1 << (longest - 1).bit_length())
  length = length if length <= chunk else _round_up(longest, chunk)
  tokens = np.zeros((len(rows), length), np.int32)
  mask = np.zeros((len(rows), length), bool)
  for i, row in enumerate(rows):
    tokens[i, length - len(row) :] = row
    mask[i, length - len(row) :] = True
  return tokens, mask


def _specs(tree: Any) -> Any:
  """How the arrays of a tree lie on the devices: caches by rows."""
  rows = (None, None, 'cache')
  axes = {'k': rows, 'v': rows, 'valid': rows[1:]}

  def spec(path, _):
    names = {getattr(key, 'name', None) for key in path}
    return mesh_lib.spec(
      *next((axes[name] for name in axes if name in names), ())
    )

  return jax.tree_util.tree_map_with_path(spec, tree)


def _round_up(n: int, multiple: int) -> int:
  return -(-n // multiple) * multiple

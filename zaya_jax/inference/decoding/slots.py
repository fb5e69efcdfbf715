# SPDX-License-Identifier: Apache-2.0
"""Texts that begin and end apart, in the slots of one cache.

Each slot is a row of the cache, filled from its first column. A prompt is read
in pieces of a few sizes, so that few programs serve all lengths, and between
two pieces the other slots go on; then the slot takes part in the step, which is
one program for all of them, or for a power of two of slots where few have a
text. On accelerators pieces of several prompts are one program, since reading
the weights takes most of its time. Here is what happens on the device; what
comes when is decided by `serve.engine`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax.inference.decoding import decoder as decoder_lib
from zaya_jax.inference.decoding import network, programs
from zaya_jax.inference.decoding import pieces as pieces_lib
from zaya_jax.inference.decoding import prefixes as prefixes_lib
from zaya_jax.inference.decoding import said as said_lib

# Pieces of a program, at most, and tokens times those that they look back at:
# both together decide how much memory a program of pieces takes.
_TOGETHER, _PAIRS = 8, 2**24


class Slots:
  """The state of some texts on the device.

  Args:
    decoder: the network; its cache is not divided among devices.
    count: texts at the same time.
    size: tokens that a slot has room for, at least.
    stop_ids: tokens that end a text.
    sizes: of pieces, ascending, each a divisor of the next.
    prefixes: as many slots full of beginnings of prompts are kept.
    together: pieces of a program, at most; None: what a device gains by.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    count: int,
    size: int,
    stop_ids: Sequence[int] = (),
    sizes: Sequence[int] = pieces_lib.SIZES,
    prefixes: int = 0,
    together: int | None = None,
  ):
    self._decoder = decoder
    largest = min([n for n in sizes if n >= size] or [sizes[-1]])
    # On an accelerator fewer pieces are worth more: docs/serving.md.
    fine = prefixes > 0 and decoder.about.steps == 1
    self.pieces = pieces_lib.Pieces([n for n in sizes if n <= largest], fine)
    # No piece may reach beyond the end: what is written there would be moved.
    self.size = -(-size // largest) * largest
    self.count = count
    self.steps = decoder.about.steps
    self._state = self._new(stop_ids)
    self._shapes = jax.eval_shape(lambda state: state, self._state)
    self._said = said_lib.Said(count, self.size)
    self._few = [count]  # Steps of so many slots are compiled.
    self._later: set[int] = set()  # Sizes of scored pieces that are not.
    if together is None:
      # A CPU computes as long for each piece.
      room = _PAIRS // (largest * self.size) if self.steps > 1 else 1
      together = min(count, _TOGETHER, max(1, room))
    self._together = together
    self._several: set[int] = set()  # Sizes of pieces that are, for several.
    self._pool = None
    if prefixes:
      self._pool = prefixes_lib.Pool(
        decoder, prefixes * self.size, self.pieces.sizes[0]
      )

  def _new(self, stop_ids: Sequence[int]) -> dict[str, Any]:
    cache = network.init_cache(
      self._decoder.about.config, self._decoder.weights, self.count, self.size
    )
    # Rows that are filled apart.
    cache = dataclasses.replace(cache, length=jnp.zeros_like(cache.position))
    each = lambda value, dtype: jnp.full((self.count,), value, dtype)
    return {
      'cache': cache,
      'tokens': each(0, jnp.int32),
      'keys': jax.random.split(jax.random.key(0), self.count),
      'left': each(0, jnp.int32),
      'temperature': each(0, jnp.float32),
      'top_p': each(1, jnp.float32),
      'scored': each(False, bool),
      'no_repeat': each(0, jnp.int32),
      # Only of slots that may not repeat.
      'seen': jnp.full((self.count, self.size), -1, jnp.int32),
      'stop_ids': jnp.array(stop_ids, jnp.int32),
    }

  def warm(self) -> None:
    """Compiles what every text needs."""
    for size in self.pieces.sizes:
      self._run(programs.read, (self._part([], 1, size), self._state), False)
      if self._pool:
        rows = self._pool.some(size)
        self._keep_rows(0, 0, rows)
        self._restore(0, 0, 0, rows)
    self.start(0, 0, 0, no_repeat=1, ids=np.zeros(1, np.int32))
    self.step()
    self.end(0)
    self.step()

  def rest(self, scored: bool = True) -> list[Callable[[], None]]:
    """What compiles the programs that only some texts need.

    They may be called in another thread. Until then steps are of all slots,
    pieces are read one by one, and prompts that are scored wait: see `scores`.

    Args:
      scored: whether there will be such prompts.
    """
    self._later = {*self.pieces.sizes} if scored else set()
    # A step over few copies their rows: no more than a part of the cache.
    most = max(1, self.count // 4) if self.count > 1 else 0
    counts = [1 << i for i in range(most.bit_length())]
    few = [functools.partial(self._compile_few, count) for count in counts]
    several = self.pieces.sizes if self._together > 1 else ()
    return [
      *(
        functools.partial(self._compile_scored, n) for n in sorted(self._later)
      ),
      *few,
      *(functools.partial(self._compile_several, n) for n in several),
    ]

  def _compile_several(self, size: int) -> None:
    part = self._part([], self._together, size)
    self._compiled(programs.read, (part, self._shapes), False)
    self._several.add(size)

  def _compile_scored(self, size: int) -> None:
    part = self._part([], 1, size)
    try:
      self._compiled(programs.read, (part, self._shapes), True)
    finally:  # Who asks is told what is wrong.
      self._later.discard(size)

  def _compile_few(self, count: int) -> None:
    slots = jnp.arange(count, dtype=jnp.int32)
    self._compiled(programs.slot_steps, (slots, self._shapes))
    self._few = sorted({*self._few, count})

  @property
  def scores(self) -> bool:
    """Whether prompts can be scored without waiting for a compiler."""
    return not self._later

  def together(self, size: int) -> int:
    """How many pieces of a size may be read at once."""
    return self._together if size in self._several else 1

  def beginning(self, ids: np.ndarray) -> bytes | None:
    """The same for prompts of which one keeps what another need not read.

    None: nothing is kept.
    """
    return ids[: self.pieces.limit(0)].tobytes() if self._pool else None

  def restore(self, slot: int, ids: np.ndarray) -> int:
    """Gives a slot what is known of a prompt that begins; then `read` it.

    Args:
      slot: where to.
      ids: the prompt, [L] int32.

    Returns:
      How many of its tokens need not be read.
    """
    if not self._pool:
      return 0
    read, ends = 0, self.pieces.ends(ids)
    for end, rows in self._pool.find(slot, ids, ends):
      self._restore(slot, read, end, rows)
      read = end
    return read

  def read(
    self, pieces: Sequence[pieces_lib.Piece], scored: bool = False
  ) -> dict[str, jax.Array]:
    """Reads the next piece of some prompts.

    Args:
      pieces: of one `padded` size, and no more than `together` says.
      scored: whether to say how likely each token after these is; of one piece.

    Returns:
      What `sampling.scores` gives for tokens `begin + 1` to the end of the
      piece, and behind them for padding; nothing if not `scored`.
    """
    size = self.pieces.padded(pieces[0])
    rows = 1 if len(pieces) == 1 else self._together
    part = self._part(pieces, rows, size)
    found = self._run(programs.read, (part, self._state), scored)
    # Another program may round in another way.
    if self._pool and not scored:
      for piece in pieces:
        self._keep(piece, size)
    return found

  def _part(self, pieces, rows, size):
    return self.pieces.part(pieces, rows, size, self.count)

  def _keep(self, piece, size):
    """Keeps a piece that was read, if it is new."""
    slot, ids, begin = piece
    if count := self.pieces.count(piece):
      is_end = count < self.pieces.limit(begin)
      rows = self._pool.add(slot, ids, begin, size, is_end)
      if rows is not None:
        self._keep_rows(slot, begin, rows)

  def _keep_rows(self, slot, begin, rows):
    where = {'slot': np.int32(slot), 'begin': np.int32(begin), 'rows': rows}
    args = (where, self._state, self._pool.cache)
    keep = self._compiled(programs.keep, args)
    _, self._pool.cache = keep(self._decoder.weights, *args)

  def _restore(self, slot, begin, end, rows):
    where = {'slot': np.int32(slot), 'begin': np.int32(begin)}
    where |= {'end': np.int32(end), 'rows': rows}
    self._run(programs.restore, (where, self._pool.cache, self._state))

  def start(
    self,
    slot: int,
    last: int,
    max_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    scored: bool = False,
    no_repeat: int = 0,
    ids: np.ndarray | None = None,
  ) -> None:
    """From now on a slot takes part in the step.

    Args:
      slot: one whose prompt was read but for its last token.
      last: this token.
      max_tokens: the most to add.
      temperature: 0: the likeliest token.
      top_p: as of `Decoder.tokens`.
      seed: of its samples, which do not depend on other slots.
      scored: whether the step says how likely its tokens are.
      no_repeat: no sequence of this many tokens comes twice; 0: any may.
      ids: the prompt, which `no_repeat` needs.
    """
    self._said.put(
      slot,
      ids if no_repeat else None,
      tokens=last,
      left=max_tokens,
      temperature=temperature,
      top_p=top_p,
      seed=seed,
      scored=scored,
      no_repeat=no_repeat,
    )

  def end(self, slot: int) -> None:
    """From now on a slot takes no part in the step."""
    self.start(slot, 0, 0)

  def step(self, taking: Sequence[int] = ()) -> dict[str, jax.Array]:
    """The next tokens of slots, as `programs.slot_steps` tells them.

    Args:
      taking: those that may have tokens left; others need not be computed.
    """
    if values := self._said.take():
      self._run(programs.settle, (values, self._state))
    count = min(n for n in self._few if n >= len(taking))
    others = [slot for slot in range(self.count) if slot not in taking]
    # In their order: all of them are not moved.
    slots = np.array(sorted([*taking, *others][:count]), np.int32)
    return self._run(programs.slot_steps, (slots, self._state))

  def _run(self, program, args, *how):
    """Runs what changes the state, its last argument."""
    run = self._compiled(program, args, *how)
    found, self._state = run(self._decoder.weights, *args)
    return found

  def _compiled(self, program, args, *how):
    return self._decoder.compiled(program, args, len(args) - 1, *how)

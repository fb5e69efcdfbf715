# SPDX-License-Identifier: Apache-2.0
"""An engine with a tiny model, and jobs whose events are kept."""

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.inference.decoding import slots as slots_lib
from zaya_jax.inference.serve import engine as engine_lib
from zaya_jax.inference.serve import jobs as jobs_lib

BYTES = tokenizer_lib.load('bytes')
PIECES = (4, 8)


def model(seed: int = 6, **changes: Any) -> model_lib.Model:
  """A model of bytes whose greedy texts have several letters."""
  # Untied: a tied model of random weights repeats one token. Biases, which
  # padding projects to.
  shape = {'num_layers': 1, 'vocab_size': 264, 'tie_embeddings': False}
  config = tiny.config(**{**shape, 'attention_bias': True, **changes})
  params, buffers = tiny.arrays(config, seed)
  return model_lib.Model(
    config=config,
    params=params,
    buffers=buffers,
    tokenizer=BYTES,
    stop_ids=(BYTES.eos_id,),
  )


def with_tokenizer(
  of: model_lib.Model, tokenizer: tokenizer_lib.Tokenizer
) -> model_lib.Model:
  """The same network for other tokens, of which it has enough."""
  assert tokenizer.vocab_size <= of.config.vocab_size
  return dataclasses.replace(
    of, tokenizer=tokenizer, stop_ids=(tokenizer.eos_id,)
  )


def engine(
  of: model_lib.Model,
  count: int = 2,
  size: int = 256,
  waiting: int = 64,
  pieces: Sequence[int] = PIECES,
  prefixes: int = 0,
  together: int | None = None,
) -> engine_lib.Engine:
  """An engine that has begun to work."""
  slots = slots_lib.Slots(
    of.decoder, count, size, of.stop_ids, pieces, prefixes, together
  )
  made = engine_lib.Engine(slots, of.tokenizer, waiting)
  made.start()
  return made


class Kept:
  """A job that keeps its events.

  Attributes:
    first: called in the engine's thread, which waits, with the first event.
  """

  def __init__(self, ids: Any, max_tokens: int = 12, **how: Any):
    self.events: queue.Queue[jobs_lib.Event] = queue.Queue()
    self.first: Callable[[], Any] = lambda: None
    self.job = jobs_lib.Job(
      ids=np.asarray(ids, np.int32),
      max_tokens=max_tokens,
      tell=self._tell,
      **how,
    )

  def _tell(self, event: jobs_lib.Event) -> None:
    self.events.put(event)
    first, self.first = self.first, lambda: None
    first()

  def all(self, timeout: float = 60.0) -> list[jobs_lib.Event]:
    """Waits for the events up to the last one."""
    found = [self.events.get(timeout=timeout)]
    while not found[-1].finish:
      found.append(self.events.get(timeout=timeout))
    return found

  def ids(self) -> list[int]:
    """The tokens that were made."""
    return [token.id for event in self.all() for token in event.tokens]


@contextlib.contextmanager
def hosted(
  engine: engine_lib.Engine,
  tokenizer: tokenizer_lib.Tokenizer,
  context: int = 256,
  keys: tuple[str, ...] = (),
  **settings: Any,
) -> Iterator[str]:
  """The address of a server in a thread of this process, named 'tiny'."""
  from zaya_jax.inference.serve import listen, mode, requests

  config = config_lib.ServeConfig(port=0, drain_s=5, **settings)
  about = requests.About(name='tiny', tokenizer=tokenizer, context=context)
  server = listen.server(about, engine, config, keys)
  began = threading.Event()
  startup = server.startup

  async def tells(sockets=None):
    await startup(sockets)
    began.set()

  server.startup = tells
  with mode.listening(config) as listener:
    thread = threading.Thread(
      target=lambda: asyncio.run(server.serve([listener]))
    )
    thread.start()
    assert began.wait(30)
    port = listener.getsockname()[1]
    try:
      yield f'http://127.0.0.1:{port}'
    finally:
      server.should_exit = True
      thread.join(30)
      assert not thread.is_alive()

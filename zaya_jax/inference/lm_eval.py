# SPDX-License-Identifier: Apache-2.0
"""A model of ours as lm-evaluation-harness sees one, without torch.

Everything that decides a score is done as by the `hf` model of the harness: bos
in front of every text, what is too long loses its left end, long texts are cut
into disjoint windows, generation stops before a stop text. To import this
module needs the package lm-eval.

Axis letters: B rows, L positions, K slots: what is asked about a row.
"""

import collections
import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from lm_eval import utils
from lm_eval.api import model as model_api
from lm_eval.models import utils as request_lib

from zaya_jax import config as config_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.model import losses, zaya
from zaya_jax.parallel import mesh as mesh_lib

_BATCH_TOKENS = 8192  # Of a batch that is scored, on each device.
_CACHE_TOKENS = 2**18  # Of a batch that is continued.
_ROWS = 64  # At most, of the latter.
_NEW_TOKENS = 256  # Where a task does not say: the harness' own.
_KNOWN = {'until', 'max_gen_toks', 'do_sample', 'temperature', 'top_p'}


class ZayaLM(model_api.TemplateLM):
  """A model as the harness sees one.

  Args:
    model: with a tokenizer.
    max_length: tokens that it admits at once.
    seed: of samples.
  """

  def __init__(self, model: model_lib.Model, max_length: int, seed: int = 0):
    super().__init__()
    self._model, self._max_length, self._seed = model, max_length, seed
    added = json.loads(model.tokenizer.to_json())['added_tokens']
    self._names = {token['id']: token['content'] for token in added}
    self._mesh = mesh_lib.make_mesh(config_lib.MeshConfig())

  @property
  def eot_token_id(self) -> int:
    """Ends a text."""
    return self._model.tokenizer.eos_id

  @property
  def prefix_token_id(self) -> int:
    """Stands before a text that has nothing before it."""
    return self._model.tokenizer.bos_id

  @property
  def max_length(self) -> int:
    """Tokens that the model admits at once."""
    return self._max_length

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
  ) -> list[int]:
    """Ids of a text, bos in front unless it is spelled out there."""
    if add_special_tokens is None:
      add_special_tokens = not string.startswith(
        self._names[self.prefix_token_id]
      )
    ids = self._model.tokenizer.encode(string).tolist()
    return [self.prefix_token_id] * add_special_tokens + ids

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Log-likelihoods of whole texts, of windows that do not overlap."""
    windows, owners = [], []
    for i, request in enumerate(requests):
      for window in utils.get_rolling_token_windows(
        token_list=self.tok_encode(request.args[0]),
        prefix_token=self.prefix_token_id,
        max_seq_len=self.max_length,
        context_len=1,
      ):
        windows.append((None, *utils.make_disjoint_window(window)))
        owners.append(i)
    totals = [0.0] * len(requests)
    found = self._loglikelihood_tokens(windows, disable_tqdm)
    for i, (nats, _) in zip(owners, found, strict=True):
      totals[i] += nats
    return totals

  def _loglikelihood_tokens(
    self,
    requests: Sequence[tuple[Any, list[int], list[int]]],
    disable_tqdm: bool = False,
    **kwargs: Any,
  ) -> list[tuple[float, bool]]:
    """Of each (_, context, continuation): the latter's log-likelihood.

    Choices of one token after one context are slots of one row.
    """
    sharing = collections.defaultdict(list)
    for i, (_, context, continuation) in enumerate(requests):
      if len(continuation) > self.max_length:
        raise config_lib.UsageError(
          f'A continuation has {len(continuation)} tokens and the model admits '
          f'{self.max_length}; leave this task out of --eval.tasks.'
        )
      row = (context + continuation)[-(self.max_length + 1) : -1]
      sharing[tuple(row)].append(i)
    batches = collections.defaultdict(list)
    for row, members in sharing.items():
      slots = sum(len(requests[i][2]) for i in members)
      shape = _round_up(len(row), 2, 32), _round_up(slots, 8, 8)
      batches[shape].append((row, members))
    found: list[Any] = [None] * len(requests)
    with tqdm.tqdm(
      total=len(requests), desc='scored', disable=disable_tqdm
    ) as bar:
      for shape, rows in sorted(batches.items(), reverse=True):
        for part in self._parts(rows, shape[0]):
          for i, answer in self._score(requests, shape, *part):
            found[i] = answer
            bar.update()
    return found

  def _parts(self, rows, length):
    """Rows that go through the network together, and to how many to pad."""
    devices = self._mesh.size
    size = min(max(1, _BATCH_TOKENS // length), -(-len(rows) // devices))
    for part in _split(rows, size * devices):
      yield part, size * devices

  def _score(self, requests, shape, rows, size):
    """Yields (index of a request, (log-likelihood, whether it is greedy))."""
    tokens_BL = np.zeros((size, shape[0]), np.int32)
    index_BK, targets_BK = np.zeros((2, size, shape[1]), np.int32)
    slots = []
    for b, (row, members) in enumerate(rows):
      tokens_BL[b, : len(row)] = row  # What comes later changes nothing.
      begin = 0
      for i in members:
        continuation = requests[i][2]
        end = begin + len(continuation)
        index_BK[b, begin:end] = range(len(row) - len(continuation), len(row))
        targets_BK[b, begin:end] = continuation
        slots.append((i, (b, slice(begin, end))))
        begin = end
    batch = jax.device_put(
      (tokens_BL, index_BK, targets_BK),
      mesh_lib.sharding(self._mesh, 'batch', 'length'),
    )
    with jax.set_mesh(self._mesh):
      nats_BK, likeliest_BK = jax.device_get(
        _log_probs(self._model.config, *self._arrays, *batch)
      )
    for i, where in slots:
      total = nats_BK[where].sum(dtype=np.float64)
      yield i, (float(total), bool(likeliest_BK[where].all()))

  @functools.cached_property
  def _arrays(self):
    arrays = self._model.params, self._model.buffers
    return jax.device_put(arrays, mesh_lib.sharding(self._mesh))

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Continuations of texts, up to a stop text."""
    groups = collections.defaultdict(list)
    for i, request in enumerate(requests):
      how = self._how(request)
      row = self.tok_encode(request.args[0])
      row = row[-(self.max_length - how[0]) :]
      groups[how].append((len(row), i, row))
    found = [''] * len(requests)
    seed = self._seed
    with tqdm.tqdm(
      total=len(requests), desc='continued', disable=disable_tqdm
    ) as bar:
      for how, rows in groups.items():
        rows.sort(reverse=True)
        size = max(1, min(_ROWS, _CACHE_TOKENS // (rows[0][0] + how[0])))
        for part in _split(rows, size):
          texts = self._continue([row for _, _, row in part], *how, seed)
          for (_, i, _), text in zip(part, texts, strict=True):
            found[i] = text
          seed += 1
          bar.update(len(part))
    return found

  def _continue(self, rows, max_tokens, temperature, top_p, stop, seed):
    """The texts of one batch."""
    decode_ids = self._model.tokenizer.decode
    rows = [np.array(row, np.int32) for row in rows]
    # A stop text has a token for each byte at most.
    tail = 1 + max(len(text.encode()) for text in stop)
    ids = [[] for _ in rows]
    done = [False] * len(rows)
    how = {'temperature': temperature, 'top_p': top_p, 'seed': seed}
    for next_B in self._model.tokens(rows, max_tokens, **how):
      for i, token in enumerate(next_B):
        if token < 0 or done[i]:
          done[i] = True
          continue
        ids[i].append(token)
        text = decode_ids(ids[i][-tail:])
        done[i] = any(end and end in text for end in stop)
      if all(done):
        break
    return [
      request_lib.postprocess_generated_text(decode_ids(row), list(stop), None)
      for row in ids
    ]

  def _how(self, request) -> tuple[int, float, float, tuple[str, ...]]:
    """New tokens at most, temperature, top_p and stop texts of a request."""
    how = request_lib.normalize_gen_kwargs(request.args[1], _NEW_TOKENS)
    name = f'The task {request.task_name} of --eval.tasks'
    if how.get('num_beams') == 1:
      del how['num_beams']
    if unknown := sorted(set(how) - _KNOWN):
      raise config_lib.UsageError(
        f'{name} generates with {", ".join(unknown)}, which is not supported; '
        f'it may use {", ".join(sorted(_KNOWN))}.'
      )
    if how['max_gen_toks'] >= self.max_length:
      raise config_lib.UsageError(
        f'{name} asks for {how["max_gen_toks"]} new tokens and the model '
        f'admits {self.max_length} in all; lower its max_gen_toks.'
      )
    end = self._names[self.eot_token_id]
    stop = request_lib.handle_stop_sequences(how['until'], eos=end)
    temperature = how.get('temperature', 0.0) if how['do_sample'] else 0.0
    top_p = how.get('top_p', 1.0)
    return how['max_gen_toks'], temperature, top_p, tuple(stop)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(config, params, buffers, tokens_BL, index_BK, targets_BK):
  def local(params, buffers, *rows):
    return losses.log_probs(zaya.bind(config, params, buffers), *rows)

  rows = mesh_lib.spec('batch', 'length')
  return mesh_lib.on_each(
    local,
    in_specs=(mesh_lib.spec(), mesh_lib.spec(), rows, rows, rows),
    out_specs=(rows, rows),
  )(params, buffers, tokens_BL, index_BK, targets_BK)


def _split(rows: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
  return (rows[i : i + size] for i in range(0, len(rows), size))


def _round_up(n: int, factor: int, least: int) -> int:
  """The least of least, least * factor, ... that holds n: few programs."""
  while least < n:
    least *= factor
  return least

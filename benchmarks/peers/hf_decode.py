# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of transformers' `generate`, by its ways to run experts."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import transformers

_LONG = 2**18  # Tokens of a prompt that is read by pieces.


def rates(
  shape: dict[str, Any],
  prompts: Callable[[], Iterable[np.ndarray]],
  *,
  tokens: int,
  repeats: int,
  seed: int,
) -> Iterator[dict[str, Any]]:
  """What each case takes, in bfloat16 with random weights.

  Args:
    shape: arguments of `transformers.ZayaConfig`.
    prompts: gives those of each case, int64 [rows, tokens].
    tokens: to make.
    repeats: of which the fastest counts.
    seed: of the weights.

  Yields:
    A line for each case and implementation of the experts; with `error` where
    torch does not have it or its memory ends.
  """
  transformers.logging.set_verbosity_error()
  config = transformers.ZayaConfig(**shape)
  config._attn_implementation = 'sdpa'
  torch.set_default_dtype(torch.bfloat16)
  for experts in ('batched_mm', 'grouped_mm', 'eager'):
    try:
      config._experts_implementation = experts
      torch.manual_seed(seed)
      with torch.device('cuda' if torch.cuda.is_available() else 'cpu'):
        model = transformers.ZayaForCausalLM(config).eval()
      for rows in prompts():
        batch, context = rows.shape
        found = _rate(model, rows, tokens, repeats)
        yield {'batch': batch, 'context': context, 'experts': experts, **found}
      del model
    # One of three ways, which torch may not have; the others go on.
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
      yield {'experts': experts, 'error': repr(error)[:300]}


def _rate(model, rows, tokens, repeats):
  batch, context = rows.shape
  rows = torch.from_numpy(rows).to(model.device)

  def seconds(count):
    start = time.perf_counter()
    out = model.generate(
      rows,
      attention_mask=torch.ones_like(rows),
      max_new_tokens=count,
      min_new_tokens=count,
      do_sample=False,
      **({'prefill_chunk_size': 1024} if batch * context > _LONG else {}),
    )
    first = out[0, context : context + 8].tolist()  # Waits for the device.
    return time.perf_counter() - start, first

  try:
    seconds(2)
    prefill, _ = min(seconds(1) for _ in range(repeats))
    whole, first = min(seconds(tokens + 1) for _ in range(repeats))
  except RuntimeError as error:
    return {'error': str(error)[:200]}
  return {
    'tokens_per_second': batch * tokens / (whole - prefill),
    'prefill_tokens_per_second': batch * context / prefill,
    'first_tokens': first,
  }

# SPDX-License-Identifier: Apache-2.0
"""Loss and gradients of `transformers`' ZAYA; prints a JSON line for each size.

    python benchmarks/peers/hf_layers.py '{"layers": [2, 4], "rows": 4, ...}'

Random weights in bfloat16, sdpa attention, experts by grouped_mm, eager and by
torch.compile: the fastest that a user of transformers has.
"""

import gc
import json
import statistics
import sys
import time

import torch
import transformers


def build(layers: int, shape: dict, device: str) -> torch.nn.Module:
  """The model of `shape`, arguments of `ZayaConfig`."""
  config = transformers.ZayaConfig(num_hidden_layers=layers, **shape)
  torch.set_default_dtype(torch.bfloat16)
  try:
    with torch.device(device):
      model = transformers.ZayaForCausalLM(config)
  finally:
    torch.set_default_dtype(torch.float32)
  model.set_attn_implementation('sdpa')
  model.set_experts_implementation('grouped_mm')
  for layer in model.model.layers:
    torch.nn.init.ones_(layer.self_attn.qk_norm.temp)  # Its keys are 0 else.
  return model.train()


def measure(model, run, tokens, repeats: int) -> dict[str, float]:
  """Median seconds, and bytes at the peak."""
  cuda = tokens.is_cuda

  def step():
    model.zero_grad(set_to_none=True)
    run(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    if cuda:
      torch.cuda.synchronize()

  for _ in range(3):
    step()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
  peak = torch.cuda.max_memory_allocated() if cuda else 0
  return {'seconds': statistics.median(times), 'peak_bytes': peak}


def main(argv: list[str]) -> None:
  """Prints a row for each way and number of layers."""
  how = json.loads(argv[0])
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  torch.manual_seed(0)
  vocab = how['shape']['vocab_size']
  tokens = torch.randint(0, vocab, (how['rows'], how['length']), device=device)
  for way in how['ways']:
    for layers in how['layers']:
      row = {'way': f'transformers {way}', 'layers': layers}
      try:
        model = build(layers, how['shape'], device)
        run = torch.compile(model) if way == 'compile' else model
        row |= measure(model, run, tokens, how['repeats'])
      except RuntimeError as error:
        row['failed'] = str(error).splitlines()[0]
      print(json.dumps(row), flush=True)
      model = run = None
      gc.collect()
      torch._dynamo.reset()
      if device == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == '__main__':
  main(sys.argv[1:])

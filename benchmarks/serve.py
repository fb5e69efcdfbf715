# SPDX-License-Identifier: Apache-2.0
"""Tokens per second and time to the first token, by the number of clients.

    python -m benchmarks.serve [--preset=small] [--clients=1,8] [--model.FLAG]

The engine of --mode=serve without HTTP, and the shapes and random weights of
`benchmarks.decode`, whose numbers for the same batch stand beside: there all
texts begin together, and no prompt is read meanwhile. Each client asks again as
soon as it has its answer, so that prompts are read while others are continued.
There are as many slots as clients, or `--slots`, of which steps then compute as
few as are taken, or with `--whole_steps` all. All prompts begin with the same
`--shared` tokens, of which `--prefixes` keeps what it has room for.

With `--peer` transformers' `generate` runs first, in a process of its own: all
clients' prompts as one batch, so that none waits for another and no row idles.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

from benchmarks import decode, record


class Clients:
  """Jobs in a closed loop; events come in the engine's thread."""

  def __init__(self, engine, args, count, vocab, seed):
    import numpy as np

    self._engine, self._args = engine, args
    self._rng = np.random.default_rng((decode.SEED, seed))
    self._most = min(30_000, vocab)
    common = np.random.default_rng(decode.SEED)
    self._common = common.integers(3, self._most, args.shared)
    self._left = count * args.rounds
    self._running = count
    self._done = threading.Event()
    self.first, self.tokens = [], 0

  def run(self):
    """Seconds until all have their answers."""
    begin = time.perf_counter()
    for _ in range(self._running):
      self._ask()
    self._done.wait()
    return time.perf_counter() - begin

  def _ask(self):
    from zaya_jax.inference.serve import jobs

    self._left -= 1
    begin, is_first = time.perf_counter(), True

    def tell(event):
      nonlocal is_first
      if event.tokens and is_first:
        is_first = False
        self.first.append(time.perf_counter() - begin)
      self.tokens += len(event.tokens)
      if event.finish:
        assert event.finish == jobs.LENGTH, event
        self._answered()

    ids = self._rng.integers(3, self._most, self._args.context)
    ids[: len(self._common)] = self._common
    self._engine.submit(
      [
        jobs.Job(
          ids=ids.astype('int32'), max_tokens=self._args.tokens, tell=tell
        )
      ]
    )

  def _answered(self):
    if self._left > 0:
      self._ask()
    else:
      self._running -= 1
      if not self._running:
        self._done.set()


def measure(args, decoder, count):
  """One row: `count` clients."""
  from pipelines import tokenizer as tokenizer_lib
  from zaya_jax.inference.decoding import slots as slots_lib
  from zaya_jax.inference.serve import engine as engine_lib

  size = args.context + args.tokens
  slots = slots_lib.Slots(
    decoder, args.slots or count, size, prefixes=args.prefixes
  )
  slots.warm()
  if not args.whole_steps:
    for compile_ in slots.rest(scored=False):
      compile_()
  # What text it is does not matter.
  engine = engine_lib.Engine(slots, tokenizer_lib.load('bytes'), count)
  engine.start()
  try:
    vocab = decoder.about.vocab_size
    Clients(engine, args, count, vocab, 0).run()  # Reaches full speed.
    clients = Clients(engine, args, count, vocab, 1)
    seconds = clients.run()
  finally:
    engine.close()
  return {
    'clients': count,
    'slots': slots.count,
    'whole_steps': args.whole_steps,
    'prefixes': args.prefixes,
    'context': args.context,
    'shared': args.shared,
    'tokens': args.tokens,
    'tokens_per_second': clients.tokens / seconds,
    'prompt_tokens_per_second': (count * args.rounds * args.context / seconds),
    'first_token_s': statistics.median(clients.first),
    'first_token_s_worst': max(clients.first),
  }


def peer(args):
  """What transformers' `generate` comes to: by clients, its fastest way."""
  command = [sys.executable, '-m', 'benchmarks.decode', '--role=theirs']
  command += [f'--preset={args.preset}', f'--batch={args.clients}']
  command += [f'--context={args.context}', '--repeats=1', *args.flags]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
  lines = [json.loads(x) for x in done.stdout.splitlines() if x[:1] == '{']
  best = {}
  for line in lines:
    if 'tokens_per_second' in line:
      first_s = line['batch'] * args.context / line['prefill_tokens_per_second']
      rest_s = line['batch'] * args.tokens / line['tokens_per_second']
      rate = line['batch'] * args.tokens / (first_s + rest_s)
      found = {'tokens_per_second': rate, 'first_token_s': first_s}
      found['experts'] = line['experts']
      before = best.get(line['batch'], found)
      best[line['batch']] = max(
        before, found, key=lambda row: row['tokens_per_second']
      )
  return best


def main():
  """Prints one JSON line for each number of clients."""
  parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
  parser.add_argument('--preset', default='zaya1_8b')
  parser.add_argument('--clients', default='1,8,64')
  parser.add_argument('--context', type=int, default=1024)
  parser.add_argument('--tokens', type=int, default=256)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--slots', type=int, default=0)
  parser.add_argument('--whole_steps', action='store_true')
  parser.add_argument('--prefixes', type=int, default=0)
  parser.add_argument('--shared', type=int, default=0)
  parser.add_argument('--peer', action='store_true')
  parser.add_argument('--output', type=pathlib.Path, help='a .json file')
  args, args.flags = parser.parse_known_args()
  about = record.circumstances('benchmarks.serve', ['jax'])
  peers = peer(args) if args.peer else {}
  import jax
  import jax.numpy as jnp

  from zaya_jax.inference.decoding import decoder as decoder_lib
  from zaya_jax.model import zaya

  model = decode.model_of(args)
  params, buffers = jax.jit(
    lambda: zaya.init(model, jax.random.key(decode.SEED))
  )()
  params = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
  decoder = decoder_lib.Decoder(model, params, buffers)
  about['hardware']['devices'] = jax.devices()[0].device_kind
  print(json.dumps({'device': jax.devices()[0].device_kind}), flush=True)
  rows = []
  for count in map(int, args.clients.split(',')):
    row = measure(args, decoder, count)
    if count in peers:
      row['transformers'] = peers[count]
      theirs = peers[count]['tokens_per_second']
      row['ratio'] = row['tokens_per_second'] / theirs
    rows.append(row)
    print(json.dumps(row), flush=True)
    if args.output:
      record.write(args.output, {**about, 'rows': rows})


if __name__ == '__main__':
  main()

# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of decoding, beside transformers, and what memory allows.

    python -m benchmarks.decode [--preset=small] [--batch=1,64] [--model.FLAG]
    python -m benchmarks.decode --quant=int8,int4 --batch=1,8,64 --no_peer

Both programs, each in a process of its own, draw random weights of a preset's
shape in bfloat16, by default eight layers of ZAYA1-8B; flags of the trainer
win. transformers runs `generate` with sdpa attention and with each
implementation of the experts that it has; its fastest counts. A step must read
the weights that its tokens use (of the experts those that were chosen) and the
cache; the limit is these bytes over `--peak_tbs`, by default the datasheet's
4.8 TB/s of an H200. With --quant each kind is a process of its own, beside
bfloat16; all matrices are rounded, --quant_targets=experts say some.

The parent process imports neither jax nor torch.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config

SEED = 0
_TYPE = 'architectures', 'model_type'  # Which `ZayaConfig` names itself.


def model_of(args):
  """The model of the preset; `args.flags` win."""
  path = record.ROOT / 'configs' / f'{args.preset}.flags'
  # In the native layout of transformers a skip class is always there.
  flags = ['--model.dtype=bfloat16', '--model.skip=zero', *args.flags]
  if args.preset == 'zaya1_8b':
    flags.insert(0, '--model.num_layers=8')
  return config_lib.Config.parse([f'--flagfile={path}', *flags]).model


def shape(model):
  """Arguments of `transformers.ZayaConfig` for a model."""
  found = hub_config.to_hf(model, 'native')
  return {
    **{name: value for name, value in found.items() if name not in _TYPE},
    'max_position_embeddings': 131072,
    'eos_token_id': None,
    'bos_token_id': None,
    'pad_token_id': 0,
  }


def ours(args):
  """One JSON line for each batch and context: this project."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  from zaya_jax.inference.decoding import decoder as decoder_lib
  from zaya_jax.model import packed, zaya

  model = model_of(args)
  params, buffers = jax.jit(lambda: zaya.init(model, jax.random.key(SEED)))()
  params = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
  params, buffers = rounded(args, model, params, buffers)
  decoder = decoder_lib.Decoder(model, params, buffers)
  count = jax.jit(
    lambda p, b, t: zaya.bind(model, p, b).features(t).load.tokens[:, :-1] > 0
  )
  for rows in prompts(args, model):
    batch, context = rows.shape
    best = None
    for _ in range(args.repeats):
      found = np.stack(list(decoder.tokens(list(rows), args.tokens)))
      speed = decoder.speed
      rate = speed.new_tokens / speed.decode_s
      best = max(best or (0, 0), (rate, batch * context / speed.prefill_s))
    # Of the tokens of one step, which experts they chose.
    chosen = int(np.sum(count(params, buffers, found[-1][:, None])))
    num_bytes = bytes_of_step(
      model, params, batch, context + args.tokens // 2, chosen
    )
    emit(
      quant=args.kind,
      batch=batch,
      context=context,
      weights_bytes=packed.num_bytes(decoder.weights),
      tokens_per_second=best[0],
      prefill_tokens_per_second=best[1],
      compile_s=speed.compile_s,
      experts_read=chosen,
      bytes_per_step=num_bytes,
      share_of_limit=num_bytes / (args.peak_tbs * 1e12) * best[0] / batch,
      first_tokens=found[:8, 0].tolist(),
    )
    if args.profile and batch == 1:
      with jax.profiler.trace(args.profile):
        list(decoder.tokens(list(rows), 20))
  stats = jax.local_devices()[0].memory_stats() or {}
  emit(
    device=jax.devices()[0].device_kind,
    peak_bytes=stats.get('peak_bytes_in_use'),
  )


def rounded(args, model, params, buffers):
  """Parameters with matrices of few bits, as --quant loads them."""
  import numpy as np

  from zaya_jax.hub import leaves, packing
  from zaya_jax.hub import names as hub_names
  from zaya_jax.hub.quantized import choice

  if args.kind == 'none':
    return params, buffers
  arrays = {
    f'{part}/{name}': np.asarray(array)
    for part, tree in (('params', params), ('buffers', buffers))
    for name, array in hub_names.flatten(tree).items()
  }
  source = leaves.Source(path='', config=model, leaves=arrays, about={})
  return packing.read(source, choice.Choice(args.kind, args.quant_targets))


def bytes_of_step(model, params, batch, tokens, chosen):
  """Bytes that one step must read: weights that it uses, and the cache.

  All is in bfloat16 but for what is packed.

  Args:
    model: the configuration.
    params: nested dict of arrays, or of their shapes.
    batch: rows.
    tokens: in the cache, of each row.
    chosen: experts of all layers together that have a token.
  """
  import jax

  from zaya_jax.model import packed

  is_packed = packed.is_packed
  size = lambda leaf: leaf.nbytes if is_packed(leaf) else 2 * leaf.size
  count = lambda tree: sum(map(size, jax.tree.leaves(tree, is_leaf=is_packed)))
  experts = count(params['layers']['experts'])
  one = experts // (model.num_layers * model.num_experts)
  cache = batch * tokens * model.num_layers * 2
  cache *= model.num_kv_heads * model.head_dim
  return count(params) - experts + chosen * one + 2 * cache


def theirs(args):
  """The same lines: transformers."""
  from benchmarks.peers import hf_decode

  model = model_of(args)
  for line in hf_decode.rates(
    shape(model),
    lambda: prompts(args, model),
    tokens=min(args.tokens, args.peer_tokens),
    repeats=args.repeats,
    seed=SEED,
  ):
    emit(**line)


def prompts(args, model):
  """Those of each case, int64 [batch, context]."""
  import numpy as np

  for size in itertools.product(args.batch, args.context):
    rng = np.random.default_rng(SEED)
    yield rng.integers(3, min(30_000, model.vocab_size), size)


def emit(**line):
  """Prints one JSON line."""
  print(json.dumps(line), flush=True)


def run(role, kind='none'):
  """Runs one role in a process of its own; returns its lines."""
  command = [sys.executable, '-m', 'benchmarks.decode', *sys.argv[1:]]
  command += [f'--role={role}', f'--kind={kind}']
  lines = []
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
    for line in child.stdout:
      if line.startswith('{'):
        lines.append(json.loads(line))
      print(f'{role:6} {line}', end='', file=sys.stderr, flush=True)
  if child.returncode:
    raise SystemExit(f'{role} ended with {child.returncode}.')
  return lines


def table(results, peers):
  """Rows of a comparison; the fastest of the peer's ways counts."""
  rows = []
  for row in (r for r in results if 'batch' in r):
    same = [
      p
      for p in peers
      if (p.get('batch'), p.get('context')) == (row['batch'], row['context'])
    ]
    best = max((p.get('tokens_per_second', 0.0) for p in same), default=0.0)
    ratio = row['tokens_per_second'] / best if best else None
    rows.append({**row, 'transformers_tokens_per_second': best, 'ratio': ratio})
  return rows


def parse(argv=None):
  """The command line."""
  numbers = lambda text: [int(x) for x in text.split(',')]
  words = lambda text: tuple(text.split(','))
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=__doc__.partition('\n')[0]
  )
  parser.add_argument('--preset', default='zaya1_8b')
  parser.add_argument('--batch', type=numbers, default=[1, 64])
  parser.add_argument('--context', type=numbers, default=[1024, 32768])
  parser.add_argument('--tokens', type=int, default=128)
  parser.add_argument('--peer_tokens', type=int, default=32)
  parser.add_argument('--repeats', type=int, default=2)
  parser.add_argument('--peak_tbs', type=float, default=4.8)
  parser.add_argument('--no_peer', action='store_true')
  parser.add_argument('--quant', type=words, default=())
  parser.add_argument(
    '--quant_targets',
    type=words,
    default=('experts', 'attention', 'embedding'),
  )
  parser.add_argument('--profile', default='')
  parser.add_argument('--output', default=str(record.RESULTS / 'decode.json'))
  parser.add_argument('--role', default='', help=argparse.SUPPRESS)
  parser.add_argument('--kind', default='none', help=argparse.SUPPRESS)
  args, args.flags = parser.parse_known_args(argv)
  return args


def main():
  """Measures, prints a table and writes the result."""
  args = parse()
  if args.role:
    return {'ours': ours, 'theirs': theirs}[args.role](args)
  about = record.circumstances('benchmarks.decode', ['jax'])
  about['model'] = shape(model_of(args))
  results = [r for k in ('none', *args.quant) for r in run('ours', k)]
  peers = [] if args.no_peer else run('theirs')
  rows = table(results, peers)
  for row in rows:
    ratio = f'{row["ratio"]:.1f}x' if row['ratio'] else '-'
    print(
      f'{row["quant"]:4} {row["weights_bytes"] / 1e9:6.2f} GB  '
      f'batch {row["batch"]:3}  context {row["context"]:6,}  '
      f'{row["tokens_per_second"]:9,.0f} tokens/s  '
      f'{100 * row["share_of_limit"]:5.1f}% of the limit  '
      f'transformers {row["transformers_tokens_per_second"]:8,.0f}  {ratio}'
    )
  about['hardware']['devices'] = results[-1]['device']
  record.write(
    pathlib.Path(args.output), {**about, 'rows': rows, 'transformers': peers}
  )


if __name__ == '__main__':
  main()

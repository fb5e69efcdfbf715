# SPDX-License-Identifier: Apache-2.0
"""Bytes and time of a decoded token with a sharded cache: tree beside ring.

  python -m benchmarks.tree_decode [--devices=4 --dtype=bfloat16]

One attention layer of ZAYA1-8B (8 query heads, 2 key/value heads of 128
channels), one sequence. A token attends to the whole cache, and the key and
value of the next are written; some tokens, one after the other, are one
program. The
cache is divided among the devices and read by `tree` attention, by `ring` (the
devices' small results go round) or by `ring_of_keys` (keys and values go round,
as in ring attention); `one` is a single device with all of it. All take turns,
and the median of each counts.

Bytes are read off the collectives of the compiled program. Devices are GPUs, or
else virtual ones of the CPU, which share its cores and memory: their times say
what a way computes and copies, not what a link between machines costs.
"""

import argparse
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import record, traffic
from benchmarks.peers import ring_decode
from zaya_jax.parallel.context import tree

HEADS, KV_HEADS, CHANNELS = 8, 2, 128
CONTEXTS = (1024, 4096, 16384, 65536, 131072)
WAYS = {
  'one': tree.attention,
  'tree': tree.attention,
  'ring': ring_decode.rotate_partials,
  'ring_of_keys': ring_decode.rotate_keys,
}
# A way gets no more turns once its turns have taken this long.
LIMIT_S = 1.0


def main() -> None:
  """Measures, prints a table and writes benchmarks/results/tree_decode.json."""
  parser = argparse.ArgumentParser()
  numbers = lambda text: [int(part) for part in text.split(',')]
  parser.add_argument('--devices', type=numbers, default=[2, 4, 8])
  parser.add_argument('--contexts', type=numbers, default=CONTEXTS)
  parser.add_argument(
    '--dtype', choices=('float32', 'bfloat16'), default='float32'
  )
  parser.add_argument('--tokens', type=int, help='default: 4 on CPU, else 64')
  parser.add_argument('--repeats', type=int, default=15)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'tree_decode.json'
  )
  args = parser.parse_args()
  about = record.circumstances('benchmarks.tree_decode', ('jax', 'jaxlib'))
  jax.config.update('jax_num_cpu_devices', max(args.devices))
  found = jax.devices()
  args.tokens = args.tokens or (4 if found[0].platform == 'cpu' else 64)
  devices = [n for n in args.devices if n <= len(found)]
  if not devices:
    parser.error(f'--devices={args.devices}: there are {len(found)}.')
  about['hardware'] |= {'devices': found[0].device_kind}
  rows = []
  for context in args.contexts:
    for n in devices:
      rows.append(measure(context, n, args.dtype, args.tokens, args.repeats))
      print(table(rows[-1:], header=len(rows) == 1), flush=True)
  settings = {key: vars(args)[key] for key in ('dtype', 'tokens', 'repeats')}
  record.write(args.output, {**about, **settings, 'rows': rows})


def measure(
  context: int, devices: int, dtype: str, tokens: int, repeats: int
) -> dict[str, Any]:
  """Measures all ways at one size.

  Args:
    context: rows of the cache, all of them filled.
    devices: among how many the cache is divided.
    dtype: of queries and cache.
    tokens: tokens of a turn.
    repeats: turns of each way, at most.

  Returns:
    For each way the 'payload' and 'sent' bytes of a device for a token, 'ms' of
    a token, and the 'difference' of its last output from that of one device, of
    the largest element; and ratios of tree to both rings.
  """
  runs, ways = {}, {}
  for name in WAYS:
    n = 1 if name == 'one' else devices
    runs[name], hlo = _program(name, n, context, dtype, tokens)
    payload, sent = traffic.count(hlo, n)
    ways[name] = {'payload': payload / tokens, 'sent': sent / tokens}
  outs = {name: np.asarray(run(), np.float64) for name, run in runs.items()}
  ms = _median_ms(runs, repeats)
  for name, way in ways.items():
    difference = np.abs(outs[name] - outs['one']).max()
    way['difference'] = difference / np.abs(outs['one']).max()
    way['ms'] = ms[name] / tokens
  ratios = {
    f'{what}_tree_over_{peer}': ways['tree'][what] / ways[peer][what]
    for what in ('sent', 'ms')
    for peer in ('ring', 'ring_of_keys')
  }
  return {'context': context, 'devices': devices, 'ways': ways, **ratios}


def table(rows: Sequence[dict[str, Any]], header: bool = True) -> str:
  """The rows of `measure` for people."""
  lines = []
  if header:
    lines += [
      'context devices |  bytes sent by a device for a token   |'
      '       ms of a token, one layer        | tree over ring',
      '                |       tree         ring  ring of keys |'
      '      one     tree     ring    of keys | bytes    ms',
    ]
  for row in rows:
    sent, ms = (
      [way[key] for way in row['ways'].values()] for key in ('sent', 'ms')
    )
    lines.append(
      f'{row["context"]:7} {row["devices"]:7} | {sent[1]:10,.0f} '
      f'{sent[2]:12,.0f} {sent[3]:13,.0f} | {ms[0]:8.3f} {ms[1]:8.3f} '
      f'{ms[2]:8.3f} {ms[3]:10.3f} | {row["sent_tree_over_ring"]:5.2f} '
      f'{row["ms_tree_over_ring"]:5.2f}'
    )
  return '\n'.join(lines)


def _program(
  way: str, devices: int, context: int, dtype: str, tokens: int
) -> tuple[Callable[[], jax.Array], str]:
  """What decodes the last `tokens` rows again and again, and its HLO."""
  mesh = jax.make_mesh(
    (devices,),
    ('context',),
    axis_types=(jax.sharding.AxisType.Explicit,),
    devices=jax.devices()[:devices],
  )
  rows = P(None, None, 'context')
  # Unchecked: the devices of a ring agree only to rounding.
  mapped = jax.shard_map(
    functools.partial(_decode, WAYS[way], context - tokens - 1, tokens),
    mesh=mesh,
    in_specs=(rows, rows, P()),
    out_specs=(rows, rows, P()),
    check_vma=False,
  )
  cache = [
    jax.device_put(a, NamedSharding(mesh, rows)) for a in _cache(context, dtype)
  ]
  rng = np.random.default_rng(1)
  query = rng.standard_normal((1, 1, HEADS, CHANNELS), np.float32)
  q_BLHC = jax.device_put(jnp.asarray(query, dtype), NamedSharding(mesh, P()))
  program = (
    jax.jit(mapped, donate_argnums=(0, 1)).lower(*cache, q_BLHC).compile()
  )

  def run():
    *cache[:], out = program(*cache, q_BLHC)
    return jax.block_until_ready(out)

  return run, program.as_text()


@functools.lru_cache(maxsize=1)
def _cache(context, dtype):
  rng = np.random.default_rng(0)
  shape = (1, KV_HEADS, context, CHANNELS)
  return [
    rng.standard_normal(shape, np.float32).astype(jnp.dtype(dtype))
    for _ in 'kv'
  ]


def _decode(attention, offset, tokens, k_BKSC, v_BKSC, q_BLHC):
  """Runs on each device; the next query is made from the output."""

  def token(i, carry):
    k_BKSC, v_BKSC, q_BLHC = carry
    out_BLHC = attention(
      q_BLHC, k_BKSC, v_BKSC, axis='context', offset=offset + i
    )
    q_BLHC = (q_BLHC + out_BLHC) / 2
    # The row of the next token: written last, it is surely written in place.
    # (Between write and product, XLA for CPUs copies the cache.)
    new_BKLC = q_BLHC[:, :, :KV_HEADS].swapaxes(1, 2)
    write = functools.partial(
      tree.write, new=new_BKLC, offset=offset + i + 1, axis='context'
    )
    return write(k_BKSC), write(v_BKSC), q_BLHC

  return jax.lax.fori_loop(0, tokens, token, (k_BKSC, v_BKSC, q_BLHC))


def _median_ms(
  runs: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, float]:
  seconds = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      if sum(seconds[name]) < LIMIT_S:
        start = time.perf_counter()
        run()
        seconds[name].append(time.perf_counter() - start)
  return {name: 1000 * statistics.median(s) for name, s in seconds.items()}


if __name__ == '__main__':
  main()

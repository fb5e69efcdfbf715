# SPDX-License-Identifier: Apache-2.0
"""What must be true of two rehearsed runs, each as a check that can fail.

A check returns what it has seen, or raises `Fault` with what is wrong. What is
expected is computed here once more, and not by the program that has run.
"""

import bisect
import math
import os
import re
from fractions import Fraction
from typing import Any

from pipelines import order
from pipelines.order import quotas as quotas_lib
from zaya_jax.aegis.rehearsal import miniature, play
from zaya_jax.checkpoint import folders, seal

_JUMP = 0.5  # Nats that a change of the RoPE base may cost.
_RATE = 1e-7  # Of a learning rate, and of 1.
_OPTIMIZER = re.compile(r'(?m)^optimizer state (\w{12}) at step (\d+)$')
_DIGITS = 16
# Of each version of the order: runs that go on rely on them.
_ORDERS = {
  2: ['3305376ce064fad92650fc2e724c7c7f', 'cfb876198ff1ab435e5a505c70559587']
}


class Fault(Exception):  # noqa: N818 - what a rehearsal is there to find.
  """What is wrong."""


def ledger(plan: miniature.Plan, *runs: play.Play) -> str:
  """The ledgers are proven, row by row and from the shards."""
  for run in runs:
    rows = run.command(
      '--mode=ledger', f'--source={run.run_dir}', '--ledger.verify=all'
    )
    checks = {row['check']: row for row in rows if 'check' in row}
    bad = [row['reason'] for row in checks.values() if not row['valid']]
    _true(not bad, '; '.join(bad))
    _true('content' in checks, f'no content was read: {rows}')
  last = plan.segments[-1]
  rows = _lines(runs[-1])
  _true(rows[-1]['rows'][1] == last.stop_row, 'rows are missing in the end')
  return f'{last.stop_row:,} rows, {checks["content"]["said"]}'


def digests(plan: miniature.Plan, reference: play.Play, run: play.Play) -> str:
  """Step for step both were given the same, and refused the same."""
  found, expected = _steps(run), _steps(reference)
  _true(sorted(found) == list(range(1, plan.last + 1)), 'steps are missing')
  differ = [step for step, what in expected.items() if found[step] != what]
  _true(not differ, f'step {differ[:1]} was given something else')
  refused = [s for s, (outcome, _) in found.items() if outcome == 'refused']
  _true(len(refused) == 1, f'the refused steps are {refused}')
  return f'{len(found)} steps, of which {len(refused)} was refused'


def quotas(plan: miniature.Plan, run: play.Play) -> str:
  """Of each mixture each source has its rows, counted by their due times."""
  found: dict[str, list[int]] = {}
  for row in _lines(run):
    sums = found.setdefault(row['phase'], [0] * len(row['sources']))
    found[row['phase']] = [
      a + b for a, b in zip(sums, row['sources'], strict=True)
    ]
  before: list[int] = []
  weights: tuple[Fraction, ...] = ()
  rows = 0
  for name in plan.phases:
    own = [s for s in plan.segments if s.phase == name]
    if own[0].weights != weights:  # Else the pattern goes on.
      weights, rows, before = own[0].weights, 0, [0] * len(own[0].weights)
    rows += sum(s.rows for s in own)
    expected = _due(weights, rows)
    wanted = [b - a for a, b in zip(before, expected, strict=True)]
    off = max(abs(a - b) for a, b in zip(found[name], wanted, strict=True))
    # A mixture of large numbers is rounded to so many parts.
    whole = math.lcm(*(w.denominator for w in weights)) <= quotas_lib.MOST_ROWS
    _true(
      off <= (0 if whole else 1),
      f'phase {name} has {found[name]} rows of its sources, not {wanted}',
    )
    before = expected
  return ', '.join(f'{k}: {v}' for k, v in found.items())


def _due(weights, rows) -> list[int]:
  """Rows of each source among the first ones.

  Row k of a share w is due at (k + 1/2) / w; of equal times the first source
  comes first.
  """
  due = sorted(
    (Fraction(2 * k + 1, 2) / weight, source)
    for source, weight in enumerate(weights)
    if weight
    for k in range(rows)
  )
  return [sum(s == i for _, s in due[:rows]) for i in range(len(weights))]


def shuffle(plan: miniature.Plan) -> str:
  """Neighbours of the order are strangers, and it is that of its version."""
  del plan
  worst, words = 0.0, []
  for tokens in (2**28, 2**32):
    extent = order.Extent(tokens, 32_768)
    whole = order.Stretch(None, 4096, (Fraction(1),))
    made = order.Order([extent], [whole], seed=3)
    words.append(made.fingerprint(0))
    places = made.places(range(20_000))
    first = [float(p.record * 8 + p.offset // 4096) for p in places]
    worst = max(worst, abs(_lag(first)))
  # Of 20,000 independent ones one in 10**8 is beyond 0.04.
  _true(worst < 0.04, f'the correlation of neighbours is {worst:.3f}')
  known = _ORDERS.get(order.VERSION, words)
  _true(known == words, f'version {order.VERSION} had other rows: {words}')
  return f'correlation of neighbours at most {worst:.3f}'


def _lag(x: list[float]) -> float:
  """The correlation of each with the next."""
  mean = sum(x) / len(x)
  y = [value - mean for value in x]
  return sum(a * b for a, b in zip(y, y[1:], strict=False)) / sum(
    a * a for a in y
  )


def states(plan: miniature.Plan, reference: play.Play, run: play.Play) -> str:
  """At each boundary and in the end all arrays are equal, bit for bit."""
  names = []
  for step in plan.ends:
    both = []
    for one in (reference, run):
      body = seal.read(_checkpoint(one, step))
      both.append(body['fingerprint'])
      _true(bool(both[-1]), f'step {step} has no fingerprint')
    differ = [k for k, v in both[0].items() if both[1].get(k) != v]
    _true(not differ, f'step {step}: {differ[:3]} differ')
    names.append(str(step))
  return f'{len(both[0])} arrays after the steps {", ".join(names)}'


def optimizer(plan: miniature.Plan, run: play.Play) -> str:
  """Whatever begins has the optimizer that was saved there, or a new one.

  A new one at step 0, and where a phase keeps parameters alone.
  """
  told = [
    (int(at), word) for word, at in _OPTIMIZER.findall(run.text('log.txt'))
  ]
  new = next((word for at, word in told if not at), '')
  prints = {p: seal.read(p)['fingerprint'] for p in _checkpoints(run)}
  saved = {
    folders.step_of(path): seal.short_print(found, 'opt_state')
    for path, found in prints.items()
  }
  anew = {s.first_step for s in plan.segments if s.keep != 'all'} | {0}
  for at, word in told:
    _true(at in {*anew, *saved}, f'step {at} began, and was not saved')
    wanted = new if at in anew else saved[at]
    _true(
      word == wanted,
      f'step {at} began with optimizer state {word} instead of {wanted}',
    )
  begins = {s.first_step for s in plan.segments}
  missing = sorted(begins - {at for at, _ in told})
  _true(not missing, f'nothing began at the steps {missing}')
  for at in (kept := sorted(begins - anew)):
    same = [x for x in saved if x != at and saved[x] == saved[at]]
    _true(not same, f'the steps {at} and {same[:1]} have the same optimizer')
  return f'{len(kept)} boundaries, {len(told)} begins'


def rates(plan: miniature.Plan, run: play.Play) -> str:
  """The learning rate is the closed form in tokens, step by step."""
  worst, found = 0.0, _metrics(run, 'optim/lr')
  _true(len(found) == plan.last, f'{len(found)} learning rates')
  for step, value in found.items():
    wanted = _rate(plan, step)
    worst = max(worst, abs(value - wanted))
    _true(
      abs(value - wanted) <= _RATE * max(1.0, wanted),
      f'step {step} has {value:.9g}, and its tokens say {wanted:.9g}',
    )
  return f'{len(found)} steps, {worst:.1e} off at most'


def _rate(plan, step) -> float:
  """By the tokens of its phase before a step."""
  at = bisect.bisect_left([s.stop_step for s in plan.segments], step)
  here = plan.segments[at]
  own = [s for s in plan.segments if s.phase == here.phase]
  whole = sum(s.rows * s.seq_len for s in own)
  before = sum(s.rows * s.seq_len for s in own if s.index < here.index)
  before += (step - 1 - here.first_step) * here.batch_size * here.seq_len
  rate = here.rate
  assert rate
  if before < rate.warmup:
    return rate.before + (rate.start - rate.before) * before / rate.warmup
  done = (before - rate.warmup) / max(1, whole - rate.warmup)
  part = {
    'constant': 0.0,
    'linear': done,
    'cosine': (1 - math.cos(math.pi * done)) / 2,
  }
  return rate.start + (rate.end - rate.start) * part[rate.shape]


def losses(plan: miniature.Plan, run: play.Play) -> str:
  """The loss stays finite, and a new RoPE base costs little."""
  found = _metrics(run, 'train/loss')
  refused = [
    s for s, (outcome, _) in _steps(run).items() if outcome == 'refused'
  ]
  missing = set(range(1, plan.last + 1)) - found.keys() - set(refused)
  _true(not missing, f'steps {sorted(missing)[:3]} have no finite loss')
  jumps = []
  for old, new in zip(plan.segments, plan.segments[1:], strict=False):
    bases = [dict(s.flags).get('model.rope_theta') for s in (old, new)]
    if bases[0] != bases[1]:
      step = new.first_step
      jumps.append(found[step + 1] - found[step])
      _true(
        jumps[-1] < _JUMP,
        f'RoPE base {bases[0]} -> {bases[1]} costs {jumps[-1]:.3f} nats',
      )
  said = ', '.join(f'{jump:+.3f}' for jump in jumps)
  first, last = found[1], found[plan.last]
  return f'{first:.3f} to {last:.3f} nats; at new RoPE bases {said or "none"}'


def kills(plan: miniature.Plan, run: play.Play) -> str:
  """All that was to happen did, and the ledger was rewound for it."""
  del plan
  rows = [r for r in run.rows('aegis/faults.jsonl') if r['fault'] == 'kill']
  _true(len(rows) == run.kills, f'{len(rows)} of {run.kills} kills')
  rewinds = len(run.rows('ledger_rewinds.jsonl'))
  return f'{len(rows)} kills, {rewinds} rewinds of the ledger'


def model(plan: miniature.Plan, run: play.Play, folder: str) -> str:
  """What was exported computes what was trained."""
  text, length = f'{os.path.dirname(folder)}/source_0.txt', 64
  run.command('--mode=export', f'--source={run.run_dir}', f'--output={folder}')
  found = []
  for source in (str(run.run_dir), folder):
    [row] = run.command(
      '--mode=eval', f'--source={source}', f'--eval.text={text}',
      f'--data.seq_len={length}',
    )  # fmt: skip
    _true('nll' in row, f'--mode=eval --source={source} failed: {row}')
    found.append(row['nll'])
  # The export may be in another type.
  _true(abs(found[0] - found[1]) < 1e-2, f'{found[0]} and exported {found[1]}')
  _true(math.isfinite(found[0]), 'the loss is not finite')
  return f'{found[0]:.4f} nats a token, exported {found[1]:.4f}'


def _true(good: bool, what: str) -> None:
  if not good:
    raise Fault(what)


def _lines(run: play.Play) -> list[dict[str, Any]]:
  return [row for row in run.rows('ledger.jsonl') if 'rows' in row]


def _steps(run: play.Play) -> dict[int, tuple[str, str]]:
  """Outcome and digest of each step."""
  return {
    row['steps'][0] + i + 1: (
      row['outcome'],
      row['each'][_DIGITS * i : _DIGITS * (i + 1)],
    )
    for row in _lines(run)
    for i in range(row['steps'][1] - row['steps'][0])
  }


def _metrics(run: play.Play, name: str) -> dict[int, float]:
  return {
    row['step']: row[name]
    for row in run.rows('metrics.jsonl')
    if row.get(name) is not None
  }


def _checkpoints(run: play.Play) -> list[str]:
  root = folders.root(str(run.run_dir))
  return [os.path.join(root, str(step)) for step in folders.steps(root)]


def _checkpoint(run: play.Play, step: int) -> str:
  return os.path.join(folders.root(str(run.run_dir)), str(step))

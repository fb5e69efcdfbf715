# SPDX-License-Identifier: Apache-2.0
"""How numbers and rows of metrics read in one line of text."""

from collections.abc import Mapping

_PREFIXES = ((1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k'))


def step_line(row: Mapping[str, float], *, total: int, eta_s: float) -> str:
  """The line of one row, in columns; unknown values leave theirs out.

  Args:
    row: as in metrics.jsonl.
    total: steps of the run.
    eta_s: seconds to the end.
  """
  parts = [
    place('step', row['step'], total),
    f'loss {_number(row, "train/loss", "7.4f")}',
    _optional(row, 'dpo/accuracy', 'prefers {:4.0%}'),
    f'lr {_number(row, "optim/lr", ".2e")}',
    f'grad {_number(row, "optim/grad_norm", "6.3f")}',
    f'{short(row["throughput/tokens_per_second"]):>6} tok/s',
    _optional(row, 'throughput/mfu', 'mfu {:5.1%}'),
    _load(row),
    _epochs(row),
    f'eta {duration(eta_s)}',
    f'skipped {row["optim/skipped"]:.0f}' if row.get('optim/skipped') else '',
  ]
  return '  '.join(part for part in parts if part)


def eval_line(values: Mapping[str, float], best: bool) -> str:
  """Held-out numbers, under the names of metrics.jsonl."""
  parts = [
    f'loss {values["val/loss"]:7.4f}',
    _optional(values, 'val/bpb', 'bpb {:.3f}'),
    _optional(values, 'val/dpo/accuracy', 'prefers the chosen {:.0%}'),
    'best so far' if best else '',
    _optional(values, 'val/zlib_bpb', '(zlib {:.3f})'),
  ]
  return '  '.join(part for part in parts if part)


def place(what: str, step: float, total: int) -> str:
  """`step   20/1000`, as wide for every step of a run."""
  return f'{what:<5} {int(step):>{len(str(total))}}/{total}'


def short(number: float) -> str:
  """Three digits and a prefix: 48.2k, 7.11G."""
  for size, prefix in _PREFIXES:
    if number >= 0.9995 * size:
      scaled = number / size
      digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
      return f'{scaled:.{digits}f}{prefix}'
  return f'{number:.0f}'


def duration(seconds: float) -> str:
  """Hours, minutes and seconds as 1:02:03, or 02:03."""
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  clock = f'{minutes:02d}:{rest:02d}'
  return f'{hours}:{clock}' if hours else clock


def printable(text: str) -> str:
  """Replaces what would move the cursor or ring; keeps new lines and tabs."""
  return ''.join(
    c if c.isprintable() or c in '\n\t' else '\ufffd' for c in text
  )


def _number(row: Mapping[str, float], key: str, form: str) -> str:
  value = row.get(key)
  return '-' if value is None else format(value, form)


def _optional(row: Mapping[str, float], key: str, form: str) -> str:
  value = row.get(key)
  return '' if value is None else form.format(value)


def _epochs(row: Mapping[str, float]) -> str:
  """How often the data were read, once they are repeated."""
  epochs = row.get('data/epochs', 0.0)
  return f'epoch {epochs:.1f}' if epochs > 1 else ''


def _load(row: Mapping[str, float]) -> str:
  """Load of the least and the most loaded expert; 1.00 is an even share."""
  low, high = row.get('moe/load_min'), row.get('moe/load_max')
  return '' if low is None or high is None else f'load {low:4.2f}..{high:4.2f}'

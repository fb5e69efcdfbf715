# SPDX-License-Identifier: Apache-2.0
"""--mode=prepare: text to a folder of shards, and what to type next.

`--mode=train` calls `shards` too, when its shards do not exist yet.
"""

import math
import shlex
import sys
import time
from collections.abc import Callable

from pipelines import prepare as pipeline
from pipelines.shards import manifest, mixture
from zaya_jax import config as config_lib
from zaya_jax.data import opening
from zaya_jax.metrics import summary, text

_WIDTH = 60  # Columns of the line that shows progress.
_NAMED = 5  # Skipped files that the summary names.


def main(config: config_lib.Config) -> None:
  """Prepares `--data.input` and prints a summary.

  Raises:
    UsageError: if the flags do not say what to read and where to write.
    DataError: if the text cannot be used.
  """
  output = _output(config)
  made = shards(config.data, output, part=config.data.part_of())
  if made is None:
    print(
      f'part {config.data.part} of {output} is done; when all parts are, the '
      'same command without --data.part does the rest'
    )
    return
  if config.data.verify:
    opening.manifests([output], verify=True)
  print('\n'.join(_summary(made, output, config.data)))


def shards(
  data: config_lib.DataConfig,
  output: str,
  *,
  part: tuple[int, int] | None = None,
) -> manifest.Manifest | None:
  """Writes the shards of `data.input` to `output`, or finds them there.

  Progress goes to stderr. Of a `part`, nothing is returned.

  Raises:
    UsageError: if `--data.input` is empty.
    DataError: if the text cannot be used.
  """
  if not data.input:
    raise config_lib.UsageError(
      '--data.input= must say what to prepare: a folder, a file, a glob, or '
      "'stdlib'."
    )
  show, seen = _progress(), []

  def progress(*counts: int) -> None:
    seen[:] = counts
    show(*counts)

  made = pipeline.prepare(
    data.input,
    output,
    text_field=data.text_field,
    tokenizer=data.tokenizer,
    train_tokenizer=data.train_tokenizer,
    val_fraction=data.val_fraction,
    record_tokens=data.record_tokens,
    shard_tokens=data.shard_tokens,
    window_tokens=min(data.seq_len, data.record_tokens),
    val_tokens=data.val_tokens,
    bad_rows=data.bad_rows,
    dedup=data.dedup,
    decontaminate=data.decontaminate,
    trim=data.trim,
    engine=data.engine,
    workers=data.workers,
    part=part,
    progress=progress,
  )
  if sys.stderr.isatty():
    print(' ' * _WIDTH, end='\r', file=sys.stderr, flush=True)
  if seen and made:  # Not when the shards were there already.
    print(_outcome(made), file=sys.stderr, flush=True)
  return made


def _outcome(made: manifest.Manifest) -> str:
  """One line; training shows no other of what was left out."""
  documents = sum(split.documents for split in made.splits.values())
  tokens = sum(split.tokens for split in made.splits.values())
  line = f'prepared: {documents:,} documents, {text.short(tokens)} tokens'
  if made.num_skipped:
    name, why = next(iter(made.skipped.items()))
    line += f'; {made.num_skipped:,} left out, the first {name} ({why})'
  if made.left_out:
    line += '; ' + _left_out(made)
  return line


def _left_out(made: manifest.Manifest) -> str:
  counts = (made.left_out or {}).items()
  return ', '.join(f'{count:,} {why}' for why, count in counts)


def _output(config: config_lib.Config) -> str:
  """The folder to write."""
  if config.output:
    return config.output
  if len(config.data.dir) > 1:
    raise config_lib.UsageError(
      f'--data.dir={",".join(config.data.dir)} names several folders; say '
      'with --output=DIR which one to prepare.'
    )
  if config.data.dir:
    return mixture.parse(config.data.dir)[0].directory
  if config.run_dir:
    return f'{config.run_dir}/data'
  raise config_lib.UsageError(
    '--mode=prepare needs --output=DIR: the folder to write.'
  )


def _progress() -> Callable[[int, int], None]:
  """Shows documents and tokens: in place on a terminal, else now and then."""
  terminal = sys.stderr.isatty()
  every_s, end = (0.2, '\r') if terminal else (10.0, '\n')
  shown = -math.inf

  def show(documents: int, tokens: int) -> None:
    nonlocal shown
    if time.monotonic() - shown >= every_s:
      shown = time.monotonic()
      line = f'preparing: {documents:,} documents, {text.short(tokens)} tokens'
      print(line.ljust(_WIDTH), end=end, file=sys.stderr, flush=True)

  return show


def _summary(
  made: manifest.Manifest, output: str, data: config_lib.DataConfig
) -> list[str]:
  lines = [f'prepared {output} from {made.num_sources:,} files']
  for name, split in made.splits.items():
    lines.append(
      f'  {name:<10} {split.documents:,} documents, {split.tokens:,} tokens, '
      f'{split.bytes_per_token:.2f} bytes per token, {len(split.shards)} '
      'shards'
    )
    if split.counted_tokens is not None:
      lines.append(
        f'  {"":<10} {split.counted_tokens:,} tokens count in the loss'
      )
  val = made.splits.get('val')
  if val and val.zlib_bits_per_byte:
    lines.append(
      f'  zlib       {val.zlib_bits_per_byte:.3f} bits per byte (val)'
    )
  lines.append(
    f'  tokenizer  {made.tokenizer}, {made.vocab_size:,} tokens in its '
    'vocabulary'
  )
  lines += [
    f'  skipped    {name}: {why}'
    for name, why in list(made.skipped.items())[:_NAMED]
  ]
  if made.num_skipped > _NAMED:
    lines.append(f'  skipped    {made.num_skipped:,} files and rows in all')
  if made.left_out:
    lines.append(f'  left out   {_left_out(made)}')
  return [*lines, 'next:', f'  {_next(made, output, data)}']


def _next(
  made: manifest.Manifest, output: str, data: config_lib.DataConfig
) -> str:
  """The command that trains on the shards."""
  words = [f'--data.dir={output}', '--run_dir=runs/mine']
  if made.record_tokens != config_lib.DataConfig().record_tokens:
    words.append(f'--data.record_tokens={made.record_tokens}')
    words.append(f'--data.seq_len={min(data.seq_len, made.record_tokens)}')
  if made.vocab_size > config_lib.ModelConfig().vocab_size:
    words.append(f'--model.vocab_size={-(-made.vocab_size // 64) * 64}')
  return f'{summary.python()} -m zaya_jax.main ' + ' '.join(
    map(shlex.quote, words)
  )

# SPDX-License-Identifier: Apache-2.0
"""--mode=eval: how well a model predicts a text, as one JSON object.

A run is scored on all of its held-out text with the data settings it was
trained with: the number that training reports with `--eval.batches=0`.
`--data.seq_len`, `--data.batch_size` and `--data.mask_documents` change that.
With `--eval.tasks` it is scored by lm-evaluation-harness instead, one JSON
object for each task.
"""

import dataclasses
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pipelines import loader
from pipelines.shards import copies, mixture
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, meta
from zaya_jax.checkpoint.reading import finder
from zaya_jax.config import fields
from zaya_jax.data import held_out, history, opening
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.inference import load as load_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.inference import score
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import rows

# What transformers takes where a config.json does not say.
_LONGEST = 131072


def main(config: config_lib.Config) -> None:
  """Scores `--eval.text`, `--eval.tasks`, or the held-out text of the run.

  Prints bits_per_byte, nll (nats per token), tokens and bytes; of a mixture the
  means by its weights, and bits_per_byte/NAME of each folder; of a task the
  metrics that it defines.

  Raises:
    UsageError: if there is no model, no text or task, or no tokenizer.
    CheckpointError: if the run holds no complete checkpoint, or the loss is
      not finite.
    FolderError: if the Hugging Face folder cannot be read.
    DataError: if the shards cannot be used, or have another tokenizer.
  """
  source = config.source or config.run_dir
  if config.eval.tasks:
    return _tasks(config, source)
  quant = choice_lib.given(config)
  model = load_lib.load(source, config.restore, quant)
  trained = _config_of(source)
  data = _windows(config, trained)
  if config.eval.text:
    batches, num_bytes = _text(config.eval.text, model, data)
    ((nats, tokens),) = _score(model, data, [batches])
    result = _numbers(nats, tokens, num_bytes)
  else:
    folders = _that_fit(_folders(config, trained), data.seq_len)
    result = _held_out(folders, model, data)
  if not math.isfinite(result['nll']):
    raise errors.CheckpointError(
      f'{source} has a loss of {result["nll"]} on this text: its weights are '
      'far too large; name an older checkpoint.'
    )
  print(
    f'note: scored in windows of {data.seq_len} tokens (--data.seq_len); only '
    'scores of equal windows compare.',
    file=sys.stderr,
  )
  rows.Rows(config.json).print(result)


def _numbers(nats: float, tokens: float, num_bytes: float) -> dict[str, Any]:
  """What is printed of one text."""
  nll = nats / tokens
  return {
    'bits_per_byte': score.bits_per_byte(nll, num_bytes / tokens),
    'nll': nll,
    'tokens': int(tokens),
    'bytes': round(num_bytes),
  }


def _tasks(config: config_lib.Config, source: str) -> None:
  """Prints one line for each task, and the harness' table to stderr."""
  asked = config.eval
  if asked.text:
    raise config_lib.UsageError(
      '--eval.tasks and --eval.text are two evaluations; leave out one of them.'
    )
  try:
    from zaya_jax.inference import harness
  except ImportError as error:
    raise config_lib.UsageError(
      f'--eval.tasks needs lm-evaluation-harness ({error}); run pip install '
      'lm-eval.'
    ) from error
  manager = harness.find_tasks(asked.tasks, asked.task_dir)
  model = load_lib.load(source, config.restore, choice_lib.given(config))
  if model.tokenizer is None:
    raise config_lib.UsageError(
      f'--eval.tasks needs a tokenizer and --source={source} has none; put a '
      'tokenizer.json into its folder.'
    )
  results = harness.evaluate(
    model,
    manager,
    max_length=model.max_positions or _max_length(source),
    num_fewshot=None if asked.num_fewshot < 0 else asked.num_fewshot,
    limit=asked.limit or None,
    seed=config.seed,
  )
  print(harness.table(results), file=sys.stderr)
  shown = rows.Rows(config.json)
  for name, metrics in results['results'].items():
    numbers = {k: v for k, v in metrics.items() if _is_number(v)}
    # The harness writes METRIC,FILTER, where most have no filter.
    numbers = {k.removesuffix(',none'): v for k, v in numbers.items()}
    shown.print({'task': name, **numbers})


def _is_number(value: Any) -> bool:
  return isinstance(value, float | int) and math.isfinite(value)


def _max_length(source: str) -> int:
  """Tokens of a context where no config.json tells."""
  trained = _config_of(source)
  return trained.data.seq_len if trained else _LONGEST


def _config_of(source: str) -> config_lib.Config | None:
  """The settings of a run; None for a Hugging Face folder."""
  if hub_folder.is_folder(source):
    return None
  directory = finder.resolve(source)
  run_dir = os.path.dirname(os.path.dirname(directory))
  flagfile = os.path.join(run_dir, 'config.flags')
  # The run may have been moved since.
  found = config_lib.Config.from_flagfile(flagfile, run_dir=run_dir)
  if found.recipe:  # As in the phase of this checkpoint.
    about = meta.read(directory)
    data = meta.data_config(about)
    if known := about.get('recipe'):  # Or the run was plain then.
      data = dataclasses.replace(data, dir=history.folders(known))
    found = dataclasses.replace(found, data=data)
  return found


def _windows(
  config: config_lib.Config, trained: config_lib.Config | None
) -> config_lib.DataConfig:
  """As the run was trained, but for flags that were given; else as they say."""
  if trained is None:
    return config.data
  names = (*config.data.windows, 'record_tokens')
  said = {
    n: getattr(config.data, n) for n in names if f'data.{n}' in config.given
  }
  return dataclasses.replace(trained.data, **said)


def _text(
  path: str, model: model_lib.Model, data: config_lib.DataConfig
) -> tuple[Iterable[dict[str, np.ndarray]], int]:
  """Batches of a text file, and its size in bytes."""
  if model.tokenizer is None:
    raise config_lib.UsageError(
      f'--eval.text={path} cannot be read by a model without a tokenizer; put '
      'a tokenizer.json into its folder.'
    )
  text = score.read_text(path)
  batches = loader.text_batches(
    text, model.tokenizer, seq_len=data.seq_len, batch_size=data.batch_size
  )
  return batches, len(text.encode())


def _folders(
  config: config_lib.Config, trained: config_lib.Config | None
) -> list[held_out.HeldOut]:
  """The folders of shards whose held-out part is scored."""
  chosen = config.data.dir or (trained.data.dir if trained else ())
  if not chosen and trained is None:
    raise config_lib.UsageError(
      '--mode=eval of a Hugging Face folder needs a text: --eval.text=FILE, or '
      '--data.dir=DIR of shards that its tokenizer made.'
    )
  parts = mixture.parse(chosen or (os.path.join(trained.run_dir, 'data'),))
  copies.keep_within(config.data.copies_gb)
  data, _ = opening.manifests(
    [part.directory for part in parts], verify=config.data.verify
  )
  mixture.check_same_tokenizer(parts, data)
  folders = held_out.find(parts, data)
  if not folders:
    raise config_lib.UsageError(
      f'{parts[0].directory} holds nothing out (--data.val_fraction=0); name a '
      'text with --eval.text=FILE.'
    )
  return folders


def _that_fit(
  folders: list[held_out.HeldOut], seq_len: int
) -> list[held_out.HeldOut]:
  """Those with windows of this length, as in training; others are told.

  Raises:
    UsageError: if there are none, as in a phase that reads other folders.
  """
  fit = [folder for folder in folders if folder.fits(seq_len)]
  if not fit:
    size = folders[0].data.record_tokens
    lengths = (n for n in fields.divisors(size) if 2 <= n <= seq_len)
    length = max(lengths, default=size)
    raise config_lib.UsageError(
      f'No held-out text has windows of {seq_len} tokens, the --data.seq_len '
      f'of the run or of now; score {folders[0].directory} in others with '
      f'--data.seq_len={length} --data.record_tokens={size}, or a text with '
      '--eval.text=FILE.'
    )
  for line in held_out.without_windows(folders, seq_len):
    print(f'note: {line}', file=sys.stderr)
  return fit


def _held_out(
  folders: Sequence[held_out.HeldOut],
  model: model_lib.Model,
  data: config_lib.DataConfig,
) -> dict[str, Any]:
  """What is printed of all folders: the means weighted, as in training."""
  found = folders[0].data  # All have the same tokenizer.
  if model.tokenizer is not None:
    found.check_tokenizer(model.tokenizer)
  if found.vocab_size > model.config.vocab_size:
    raise config_lib.UsageError(
      f'{folders[0].directory} has {found.vocab_size} different tokens '
      f'({found.tokenizer}) and the model only {model.config.vocab_size}; '
      'prepare the text with the tokenizer of the model.'
    )
  texts = [folder.batches(**data.windows) for folder in folders]
  each = [
    _numbers(nats, tokens, tokens * folder.text.bytes_per_token)
    for folder, (nats, tokens) in zip(
      folders, _score(model, data, texts), strict=True
    )
  ]
  result = score.mean(each, [folder.weight for folder in folders])
  for name in ('tokens', 'bytes'):
    result[name] = sum(one[name] for one in each)
  if len(folders) > 1:
    for folder, one in zip(folders, each, strict=True):
      result[f'bits_per_byte/{folder.name}'] = one['bits_per_byte']
  return result


def _score(
  model: model_lib.Model,
  data: config_lib.DataConfig,
  texts: Sequence[Iterable[dict[str, np.ndarray]]],
) -> list[tuple[float, float]]:
  """Of each text nats and tokens, on as many devices as divide a batch."""
  devices = math.gcd(jax.device_count(), data.batch_size)
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=devices))
  params, buffers = jax.device_put(
    (model.params, model.buffers), mesh_lib.sharding(mesh)
  )
  with jax.set_mesh(mesh):
    eval_step = jax.jit(score.make_eval_step(model.config))
    return [score.score(eval_step, mesh, params, buffers, b) for b in texts]

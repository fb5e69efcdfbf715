# SPDX-License-Identifier: Apache-2.0
"""--mode=generate: continues prompts, on the terminal as they grow.

One prompt is written out as its text grows. The prompts of a file are continued
together, and each becomes one JSON object on stdout. What is not text (that it
compiles, how fast it was) goes to stderr.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.hub import packing
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.inference import conversation
from zaya_jax.inference import load as load_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.metrics import text as text_lib
from zaya_jax.parallel import mesh as mesh_lib

_BATCH = 64  # Prompts of a file that are continued together.


def main(config: config_lib.Config) -> None:
  """Continues `--prompt`, stdin, or the prompts of `--generate.prompts`.

  Raises:
    UsageError: if `--source` and `--run_dir` are empty, or prompts cannot be
      read.
    DataError: if the model has no chat template and `--generate.chat` is set.
  """
  source = config.source or config.run_dir
  path = config.generate.prompts
  if path and config.prompt:
    raise config_lib.UsageError(
      f'--generate.prompts={path} and --prompt={config.prompt} exclude each '
      'other; drop one.'
    )
  if config.mesh.context > 1:  # Refused now rather than behind the prompt.
    mesh_lib.make_context_mesh(config.mesh.context)
  prompts = _read_prompts(path) if path else [{'prompt': _one(config)}]
  model = dataclasses.replace(
    load_lib.load(source, config.restore, choice_lib.given(config)),
    context=config.mesh.context,
    on_note=_note,
  )
  rows = [row(model, prompt, config.generate.chat) for prompt in prompts]
  model = model.text_only()
  if line := packing.note(model.decoder.weights):
    _note(line)
  how = {
    'max_tokens': config.generate.max_tokens,
    'temperature': config.generate.temperature,
    'top_p': config.generate.top_p,
    'no_repeat': config.generate.no_repeat,
    'seed': config.seed,
    'stop': config.generate.stop,
  }
  if path:
    _continue_all(model, prompts, rows, how)
  else:
    _continue_one(model, prompts[0]['prompt'], rows, config.generate.chat, how)


def sample(
  config: config_lib.Config,
  tokenizer: tokenizer_lib.Tokenizer,
  params: dict[str, Any],
  buffers: dict[str, Any],
  seed: int,
) -> str:
  """What a run that is training makes of `--prompt`.

  Args:
    config: of the run.
    tokenizer: of its data.
    params: on its mesh, of `lora.join` too; this process can read all of them.
    buffers: likewise.
    seed: of the sample.
  """
  arrays = params, buffers
  if all(a.is_fully_replicated for a in jax.tree.leaves(arrays)):
    arrays = mesh_lib.off_mesh(arrays)  # Nothing is copied.
  else:  # By way of the host: no device of the mesh gets more than it has.
    arrays = jax.tree.map(np.asarray, arrays)
  params, buffers = arrays
  model = model_lib.Model(
    config=config.model,
    params=params,
    buffers=buffers,
    tokenizer=tokenizer,
    stop_ids=tokenizer.stop_ids,
  )
  how = config.generate
  (text,) = model.generate(
    [row(model, {'prompt': config.prompt}, how.chat)],
    max_tokens=how.max_tokens,
    temperature=how.temperature,
    top_p=how.top_p,
    no_repeat=how.no_repeat,
    seed=seed,
  )
  return text


def _continue_one(model, prompt, rows, chat, how):
  """Writes a prompt and its continuation as it grows."""
  # A terminal would obey what the model writes.
  safe = text_lib.printable if sys.stdout.isatty() else str
  show = lambda piece: print(safe(piece), end='', flush=True)
  if not chat:
    show(prompt)
  model.generate(rows, on_text=show, **how)
  print()
  _note(str(model.decoder.speed))


def _continue_all(model, prompts, rows, how):
  """Writes one JSON object for each prompt, in their order."""
  for begin in range(0, len(rows), _BATCH):
    part = slice(begin, begin + _BATCH)
    # Of one seed, each part would be sampled as the first one was.
    seed = (how['seed'] + begin) % 2**32
    texts = model.generate(rows[part], **{**how, 'seed': seed})
    for prompt, continuation in zip(prompts[part], texts, strict=True):
      line = {**prompt, 'text': continuation}
      print(json.dumps(line, ensure_ascii=False), flush=True)
    _note(f'{min(begin + _BATCH, len(rows))} of {len(rows)} prompts')
    _note(str(model.decoder.speed))


def row(
  model: model_lib.Model, prompt: dict[str, Any], chat: bool
) -> np.ndarray | str:
  """What `Model.generate` takes: the text, or the tokens of a conversation.

  Args:
    model: with a tokenizer.
    prompt: {'prompt': …} or {'messages': […]}.
    chat: whether a prompt is a message of the user.

  Raises:
    UsageError: if the model has no tokenizer.
    DataError: if there is no chat template, or it refuses the conversation.
  """
  messages = prompt.get('messages')
  if messages is None and not chat:
    return prompt['prompt']
  if model.tokenizer is None:
    raise config_lib.UsageError(
      'The model has no tokenizer; put a tokenizer.json into its folder.'
    )
  messages = messages or [{'role': 'user', 'content': prompt['prompt']}]
  return conversation.encode(model.tokenizer, messages)


def _one(config: config_lib.Config) -> str:
  """The text of `--prompt`, or of stdin unless that is a terminal."""
  if config.prompt or sys.stdin.isatty():
    return config.prompt
  try:
    prompt = sys.stdin.read()
    prompt.encode()  # Some locales hide bytes that are not UTF-8 until here.
  except UnicodeError as error:
    raise config_lib.UsageError(
      f'The prompt on stdin is not text in UTF-8 ({error}); convert it, or '
      'use --prompt=TEXT.'
    ) from error
  return prompt


def _read_prompts(path: str) -> list[dict[str, Any]]:
  """The prompts of a file, each as {'prompt': …} or {'messages': […]}."""
  try:
    # Not `splitlines`: a JSON string may hold U+2028 and its like.
    with open(path, encoding='utf-8-sig') as file:
      lines = file.read().split('\n')
  except (OSError, UnicodeDecodeError) as error:
    raise config_lib.UsageError(
      f'--generate.prompts={path} cannot be read: {error}.'
    ) from error
  lines = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
  if not lines:
    raise config_lib.UsageError(
      f'--generate.prompts={path} holds no prompt; write one per line.'
    )
  if path.endswith('.jsonl'):
    return [_parse(path, i, line) for i, line in lines]
  return [{'prompt': line} for _, line in lines]


def _parse(path: str, number: int, line: str) -> dict[str, Any]:
  try:
    # Half a surrogate pair, which JSON can spell, becomes U+FFFD.
    text = json.dumps(json.loads(line), ensure_ascii=False)
    text = text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
    prompt = json.loads(text)
  except ValueError:
    prompt = None
  if isinstance(prompt, dict):
    messages = prompt.get('messages')
    if messages is None and isinstance(prompt.get('prompt'), str):
      return prompt
    if (
      isinstance(messages, list)
      and messages
      and all(isinstance(message, dict) for message in messages)
    ):
      return prompt
  raise config_lib.UsageError(
    f'--generate.prompts={path}: line {number} must be a JSON object with '
    '"prompt" (a text) or "messages" (a list of {"role": …, "content": …}).'
  )


def _note(line: str) -> None:
  print(line, file=sys.stderr, flush=True)

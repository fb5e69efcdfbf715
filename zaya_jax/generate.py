# SPDX-License-Identifier: Apache-2.0
"""--mode=generate: continues a prompt, on the terminal as it grows."""

import sys

from zaya_jax import config as config_lib
from zaya_jax import models
from zaya_jax.metrics import text


def main(config: config_lib.Config) -> None:
  """Continues `--prompt`, or stdin where it is empty and not a terminal.

  Raises:
    UsageError: if `--source` and `--run_dir` are empty, or stdin is not UTF-8.
  """
  source = config.source or config.run_dir
  if not source:
    raise config_lib.UsageError(
      '--mode=generate needs --source=DIR (or --run_dir=DIR): the model.'
    )
  prompt = config.prompt
  if not prompt and not sys.stdin.isatty():
    prompt = _read_stdin()
  model = models.load(source)
  how = config.generate
  # A terminal would obey what the model writes.
  safe = text.printable if sys.stdout.isatty() else str

  def show(piece: str) -> None:
    print(safe(piece), end='', flush=True)

  show(prompt)
  model.generate(
    prompt,
    max_tokens=how.max_tokens,
    temperature=how.temperature,
    top_p=how.top_p,
    seed=config.seed,
    on_text=show,
  )
  print()


def _read_stdin() -> str:
  try:
    prompt = sys.stdin.read()
    prompt.encode()  # Some locales hide bytes that are not UTF-8 until here.
  except UnicodeError as error:
    raise config_lib.UsageError(
      f'The prompt on stdin is not text in UTF-8 ({error}); convert it, or '
      'use --prompt=TEXT.'
    ) from error
  return prompt

# SPDX-License-Identifier: Apache-2.0
"""--mode=generate: continues a prompt, on the terminal as it grows."""

import sys

from zaya_jax import config as config_lib
from zaya_jax import models


def main(config: config_lib.Config) -> None:
  """Continues `--prompt`, or stdin where it is empty and not a terminal.

  Raises:
    UsageError: if `--source` and `--run_dir` are empty.
  """
  source = config.source or config.run_dir
  if not source:
    raise config_lib.UsageError(
      '--mode=generate needs --source=DIR (or --run_dir=DIR): the model.'
    )
  model = models.load(source)
  prompt = config.prompt
  if not prompt and not sys.stdin.isatty():
    prompt = sys.stdin.read()
  how = config.generate
  print(prompt, end='', flush=True)
  model.generate(
    prompt,
    max_tokens=how.max_tokens,
    temperature=how.temperature,
    top_p=how.top_p,
    seed=config.seed,
    on_text=lambda text: print(text, end='', flush=True),
  )
  print()

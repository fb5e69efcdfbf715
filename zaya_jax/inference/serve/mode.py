# SPDX-License-Identifier: Apache-2.0
"""--mode=serve: a model behind OpenAI's API."""

import asyncio
import os
import socket

from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.inference.serve import requests, start


def main(config: config_lib.Config) -> int:
  """Serves until SIGTERM or Ctrl-C, then lets requests end.

  Returns:
    DONE, or INTERNAL if the engine failed.

  Raises:
    UsageError: if the packages of the extra `serve` are missing, the address
      cannot be used, others reach it and there is no key, or the model has no
      tokenizer.
    CheckpointError: if the model is damaged.
  """
  try:
    from zaya_jax.inference.serve import door, listen
  except ModuleNotFoundError as error:
    raise config_lib.UsageError(
      f'--mode=serve needs the package {error.name}; install zaya_jax[serve] '
      '(docs/serving.md).'
    ) from error
  settings = config.serving
  allowed = door.keys(settings)
  # Before the model, which takes long to load.
  with listening(settings) as listener:
    model = start.model(config)
    source = os.path.abspath(config.source or config.run_dir)
    about = requests.About(
      name=settings.name or os.path.basename(source),
      tokenizer=model.tokenizer,
      context=start.context(model, settings),
    )
    with start.running(model, about.context, settings) as engine:
      listen.allow_files()
      server = listen.server(about, engine, settings, allowed)
      asyncio.run(server.serve([listener]))
  return exit_codes.INTERNAL if engine.failure else exit_codes.DONE


def listening(settings: config_lib.ServeConfig) -> socket.socket:
  """A socket with the address; connections are taken later.

  Raises:
    UsageError: if the address cannot be had.
  """
  is_6 = ':' in settings.host
  made = socket.socket(socket.AF_INET6 if is_6 else socket.AF_INET)
  try:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((settings.host, settings.port))
  except OSError as error:
    made.close()
    raise config_lib.UsageError(
      f'--serve.host={settings.host} --serve.port={settings.port} cannot be '
      f'used: {error.strerror or error}; choose another port, or 0 for any '
      'that is free.'
    ) from error
  return made

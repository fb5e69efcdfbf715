# SPDX-License-Identifier: Apache-2.0
"""A tiny Hugging Face model with a chat template, and how it is fine-tuned."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import safetensors.numpy

from tests.support import chats
from zaya_jax import main
from zaya_jax.checkpoint.reading import finder, lazy

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / 'tests' / 'golden' / 'plain'
SMALL = """
--num_steps=40
--data.seq_len=64
--data.batch_size=8
--data.record_tokens=1024
--data.val_fraction=0.2
--optim.lr=1e-2
--optim.lr_final=1e-3
--optim.warmup_steps=2
--checkpoint.every=0
--eval.every=0
--log.every=20
--generate.max_tokens=2
--model.remat=none
--mesh.replica=1
--nolog.tensorboard
""".split()


def conversations(count: int = 60, numbers: int = 7) -> list[dict[str, Any]]:
  """Questions whose answers follow a rule."""
  return [
    {
      'messages': [
        {'role': 'user', 'content': f'Say {i % numbers} twice.'},
        {'role': 'assistant', 'content': f'{i % numbers} and {i % numbers}'},
      ]
    }
    for i in range(count)
  ]


def model_folder(folder: pathlib.Path, template: str = 'chatml') -> None:
  """Makes the golden model one of bytes and two more tokens, in `folder`."""
  shutil.copytree(GOLDEN, folder)
  chats.tokenizer_folder(folder, template)
  config = json.loads((folder / 'config.json').read_text())
  config['vocab_size'] = 259
  (folder / 'config.json').write_text(json.dumps(config))
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  rng = np.random.default_rng(0)
  name = 'model.embed_tokens.weight'
  shape = (259, tensors[name].shape[1])
  tensors[name] = rng.normal(0, 0.02, shape).astype(np.float32)
  for name, bias in tensors.items():
    if name.endswith('balancing_biases'):
      bias[-1] = -1.0  # What `from_pretrained` makes of any other value.
  metadata = {'format': 'pt'}
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors', metadata)


def write(path: pathlib.Path, numbers: int = 7) -> pathlib.Path:
  """Writes the conversations as a .jsonl."""
  path.write_text('\n'.join(map(json.dumps, conversations(numbers=numbers))))
  return path


def tune(source: pathlib.Path, run_dir: pathlib.Path, *args: str) -> int:
  """Fine-tunes from the command line; returns its exit code."""
  preset = f'--flagfile={ROOT}/configs/finetune.flags'
  named = [f'--restore={source}', f'--run_dir={run_dir}']
  return main.main(['zaya_jax', preset, *named, *SMALL, *args])


def home(folder: pathlib.Path) -> pathlib.Path:
  """Writes a base, `hf`, and conversations, `chats.jsonl`, into a folder."""
  model_folder(folder / 'hf')
  write(folder / 'chats.jsonl')
  return folder


def tune_chats(
  folder: pathlib.Path, run: str, *args: str, base: str = 'hf'
) -> int:
  """Fine-tunes what `home` wrote; the run is a folder beside it."""
  text = f'--data.input={folder}/chats.jsonl'
  named = ['--log.sample_every=0', *args]
  return tune(folder / base, folder / run, text, *named)


def leaves(run: pathlib.Path) -> dict[str, np.ndarray]:
  """All arrays of the last checkpoint of a run, by name."""
  found = lazy.leaves(finder.resolve(str(run)))
  return {name: np.asarray(leaf[()]) for name, leaf in found.items()}

# SPDX-License-Identifier: Apache-2.0
"""Models go from transformers to us and back, and nothing changes.

Import and export are commands of their own here, as users run them.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

import zaya_jax
from pipelines import tokenizer as tokenizer_lib
from tests.parity import cases, pairs, peer
from tests.support import bits, legacy, runs, tiny
from zaya_jax.hub import files as hub_files

ROOT = pathlib.Path(__file__).parents[2]
VOCAB = 270  # Of the byte tokenizer, and some rows more.
LOSS = 1e-5  # Relative.
LOGITS = 1e-5  # Of the spread.
TEXT = 'def f(x):\n  return "añ☃🙂"  # <bos>\r\n' * 4


@dataclasses.dataclass(frozen=True)
class Model:
  """A model on its way: the folders, and what transformers makes of each."""

  source: pathlib.Path  # As transformers, or the first release, wrote it.
  run: pathlib.Path
  native: pathlib.Path  # Exported.
  layout: str

  @functools.cached_property
  def before(self) -> transformers.ZayaForCausalLM:
    """From the source; the first release's is read by way of our export."""
    return load(self.source if self.layout == 'native' else self.native)


def load(folder: pathlib.Path) -> transformers.ZayaForCausalLM:
  """In float32, as `from_pretrained` reads it; nothing may be left over."""
  model, report = transformers.ZayaForCausalLM.from_pretrained(
    folder,
    dtype=torch.float32,
    attn_implementation='eager',
    experts_implementation='eager',
    output_loading_info=True,
  )
  assert not any(report.values()), report
  return model.eval()


def command(mode: str, source: pathlib.Path, output: pathlib.Path, *flags):
  """Runs one command line; it must succeed."""
  done = subprocess.run(
    [
      sys.executable,
      *('-m', 'zaya_jax.main', f'--mode={mode}'),
      *(f'--source={source}', f'--output={output}', *flags),
    ],
    cwd=ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


LEFT_OUT = (
  'one_expert_longer_depthwise_convolution',
  'all_layers_slide_two_experts',
  'one_layer_whole_head_rotated',
)
NATIVE = {case.name: case for case in cases.ALL if case.name not in LEFT_OUT}
LEGACY = {f'legacy_{case.name}': case for case in legacy.CASES}
BFLOAT16 = 'plain_bfloat16'
SHARDED = 'everything_at_once'  # Every other tensor in a file of its own.


@pytest.fixture(scope='module')
def model_of(tmp_path_factory):
  """The model of a case by name, made once."""

  @functools.cache
  def build(name: str) -> Model:
    folder = tmp_path_factory.mktemp(name)
    source = folder / 'source'
    if name in LEGACY:
      case = dataclasses.replace(LEGACY[name], vocab=VOCAB)
      legacy.write(source, legacy.config(case), legacy.tensors(case))
    else:
      case = NATIVE[name.removesuffix('_bfloat16')]
      keys = case.keys | {'vocab_size': VOCAB}
      theirs = peer.build(dataclasses.replace(case, keys=keys))
      for key, bias in theirs.named_buffers():
        if key.endswith('balancing_biases'):
          bias[-1] = -1.0  # What `from_pretrained` makes of any other value.
      if name == BFLOAT16:
        theirs = theirs.bfloat16()
      size = '20KB' if name == SHARDED else '5GB'
      theirs.save_pretrained(source, max_shard_size=size)
    tokenizer = tokenizer_lib.load('bytes').to_json()
    (source / 'tokenizer.json').write_bytes(tokenizer)
    command('import', source, folder / 'run')
    command('export', folder / 'run', folder / 'native')
    layout = 'legacy' if name in LEGACY else 'native'
    return Model(source, folder / 'run', folder / 'native', layout)

  return build


@pytest.fixture(params=[*NATIVE, BFLOAT16, *LEGACY])
def model(request, model_of) -> Model:
  """Every model in turn."""
  return model_of(request.param)


def test_tensors_come_back_to_the_bit(model, tmp_path):
  back = model.native
  if model.layout == 'legacy':
    back = tmp_path / 'back'
    command('export', model.run, back, '--export.layout=legacy')
  bits.assert_same(bits.read(back), bits.read(model.source))


def test_greedy_tokens_are_identical(model):
  """64 tokens in float32, three prompts padded on the left."""
  ours = zaya_jax.load(str(model.run))
  ours = dataclasses.replace(ours, stop_ids=(), tokenizer=None)
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, VOCAB, (3, 32)).astype(np.int32)
  mask = (np.arange(32) >= np.array([0, 1, 13])[:, None]).astype(np.int32)
  rows = [r[m > 0] for r, m in zip(tokens, mask, strict=True)]
  found = np.stack(list(ours.tokens(rows, pairs.STEPS)), axis=1)
  theirs = model.before
  theirs.generation_config = transformers.GenerationConfig()  # No stops.
  wanted = peer.greedy(theirs, tokens * mask, mask, pairs.STEPS)
  assert found.shape == (3, pairs.STEPS)
  np.testing.assert_array_equal(found, wanted)
  assert max(len(set(row.tolist())) for row in wanted) >= 5


def test_bits_per_byte_are_those_of_their_loss(model, tmp_path, achieved):
  text = tmp_path / 'text.txt'
  text.write_text(TEXT, newline='')
  done = command(
    'eval', model.run, tmp_path / 'none', f'--eval.text={text}',
    '--data.seq_len=256', '--data.batch_size=1',
  )  # fmt: skip
  found = json.loads(done.splitlines()[-1])
  tokenizer = transformers.AutoTokenizer.from_pretrained(model.native)
  ids = tokenizer(TEXT, return_tensors='pt').input_ids
  assert ids.shape[1] == found['bytes'] + 1
  with torch.no_grad():
    loss = model.before(ids, labels=ids).loss.item()
  bits = loss * (ids.shape[1] - 1) / math.log(2) / len(TEXT.encode())
  achieved(f'{abs(found["bits_per_byte"] / bits - 1):.1e}')
  assert found['bits_per_byte'] == pytest.approx(bits, rel=LOSS)


def test_exported_folder_gives_our_logits(model, achieved):
  tokens = np.random.default_rng(1).integers(3, VOCAB, (2, 32), np.int32)
  wanted = np.asarray(zaya_jax.load(str(model.run))(tokens))
  found = peer.logits(load(model.native), tokens, np.ones_like(tokens))
  error = np.abs(found - wanted).max() / np.ptp(wanted)
  achieved(f'{error:.1e}')
  assert error <= LOGITS


def test_other_weights_are_noticed(model_of, tmp_path):
  """What the tests above compare does depend on the tensors."""
  model = model_of('plain')
  values = bits.read(model.native)
  name = 'model.layers.1.mlp.experts.gate_up_proj'
  values[name] = np.roll(values[name], values[name].shape[1] // 2, axis=1)
  for file in model.native.glob('*.json'):
    (tmp_path / file.name).write_bytes(file.read_bytes())
  safetensors.numpy.save_file(
    values, tmp_path / 'model.safetensors', metadata={'format': 'pt'}
  )
  tokens = np.random.default_rng(1).integers(3, VOCAB, (2, 32), np.int32)
  wanted = np.asarray(zaya_jax.load(str(model.run))(tokens))
  found = peer.logits(load(tmp_path), tokens, np.ones_like(tokens))
  assert np.abs(found - wanted).max() / np.ptp(wanted) > 100 * LOGITS
  with pytest.raises(AssertionError):
    bits.assert_same(values, bits.read(model.source))


@pytest.mark.parametrize('kind', ['bytes', 'bpe'])
def test_generated_tokens_are_the_same(tmp_path, kind):
  """Of a run: tokenizer, padding, stops and rows that are no tokens."""
  (tmp_path / 'run').mkdir()
  if kind == 'bpe':
    tokenizer_lib.train_bpe([TEXT * 3], 280).save(tmp_path / 'run')
  name = kind if kind == 'bytes' else str(tmp_path / 'run')
  model = tiny.config(vocab_size=300, tie_embeddings=False, d_model=48)
  run = runs.save(tmp_path / 'run', model, name)
  command('export', run, tmp_path / 'out')
  prompts = ['def f', 'x', 'añ☃ <eos>']
  ours = zaya_jax.load(str(run))
  bos = ours.tokenizer.bos_id
  rows = [np.insert(ours.tokenizer.encode(text), 0, bos) for text in prompts]
  wanted = np.stack(list(ours.tokens(rows, 40)), axis=1)
  theirs = load(tmp_path / 'out')
  stored = bits.read(tmp_path / 'out')
  for key, bias in theirs.named_buffers():  # See `find_notes`.
    if key.endswith('balancing_biases'):
      bias.copy_(torch.from_numpy(stored[key]))
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  inputs = tokenizer(prompts, padding=True, return_tensors='pt')
  grown = theirs.generate(**inputs, max_new_tokens=40)
  new = grown[:, inputs.input_ids.shape[1] :]
  np.testing.assert_array_equal(new, wanted)
  assert len(set(wanted.ravel().tolist())) >= 3
  found = tokenizer.batch_decode(new, skip_special_tokens=True)
  assert found == [ours.tokenizer.decode(row) for row in wanted]


def test_their_tokenizer_is_ours(model_of):
  """Bytes and nothing else, bos in front, and back without a loss."""
  theirs = transformers.AutoTokenizer.from_pretrained(model_of('plain').native)
  for text in (TEXT, '', ' a  .', ''.join(map(chr, range(300))), '<eos>'):
    ids = theirs(text).input_ids
    assert ids == [257, *text.encode()]
    assert theirs.decode(ids, skip_special_tokens=True) == text
  batch = theirs(['a', 'abc'], padding=True)
  assert batch.input_ids == [[256, 256, 257, 97], [257, 97, 98, 99]]
  assert batch.keys() == {'input_ids', 'attention_mask'}
  assert theirs('<bos>', split_special_tokens=False).input_ids == [257, 257]


def test_trained_tokenizer_puts_bos_in_front(tmp_path):
  ours = tokenizer_lib.train_bpe([TEXT * 3], 280)
  hub_files.write_tokenizer(tmp_path, ours, 64)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  for text in (TEXT, '<bos> a'):
    assert theirs(text).input_ids == [ours.bos_id, *ours.encode(text)]

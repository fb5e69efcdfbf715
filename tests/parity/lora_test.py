# SPDX-License-Identifier: Apache-2.0
"""Adapters beside `peft` on the Hugging Face model, out and in."""

import json

import jax
import numpy as np
import peft
import pytest
import torch

from tests.parity import cases, peer
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.writing import manager
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub.adapters import adapter
from zaya_jax.inference import load as load_lib
from zaya_jax.model import lora as lora_lib

LORA = config_lib.LoraConfig(rank=3, alpha=5.0)
CASE = cases.ALL[0]
MODULES = ['q_proj', 'k_proj', 'v_proj_current', 'v_proj_delayed', 'o_proj']
PARAMETERS = ['mlp.experts.gate_up_proj', 'mlp.experts.down_proj']
BOUND = 1e-5
# Of transformers, which peft asks for a property's old name.
pytestmark = pytest.mark.filterwarnings('ignore:`is_gradient_checkpointing`')


@pytest.fixture
def base(tmp_path):
  """Their model, saved."""
  peer.save(peer.build(CASE), str(tmp_path / 'base'))
  return tmp_path / 'base'


def error(ours, theirs) -> float:
  """Largest difference of logits, as a share of their spread."""
  tokens, mask = peer.batch(CASE)
  wanted = peer.logits(theirs, tokens, mask)[mask.astype(bool)]
  found = np.asarray(ours(tokens, mask))[mask.astype(bool)]
  return float(np.abs(found - wanted).max() / np.ptp(wanted))


def run_with_adapter(folder, base):
  """A run as training leaves it, none of whose factors is 0."""
  model = hub_folder.read_config(str(base))
  config = config_lib.Config(run_dir=str(folder), model=model, lora=LORA)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda a: jax.device_put((0.2 * rng.normal(size=a.shape)).astype('f4')),
    lora_lib.init(model, LORA, jax.random.key(0)),
  )
  about = meta.describe(
    config, flags=config.to_flagfile(), tokenizer_sha256='', dataset_sha256='',
    tokens=0, metrics={},
  )  # fmt: skip
  print_ = adapter.identity(leaves_lib.find(str(base)))
  named = adapter.Base(source=str(base), fingerprint=print_)
  about[adapter.META] = named.as_json()
  with manager.Manager(str(folder), config.checkpoint) as saved:
    saved.save(7, {'params': params}, data_index=0, meta=about)
  return folder


def test_peft_reads_what_we_write(tmp_path, base, achieved):
  run, out = run_with_adapter(tmp_path / 'run', base), tmp_path / 'adapter'
  args = ['--mode=export', '--export.layout=peft', f'--source={run}']
  assert main.main(['zaya_jax', *args, f'--output={out}']) == 0
  ours = load_lib.load(str(run))
  theirs = peft.PeftModel.from_pretrained(peer.build(CASE), str(out)).eval()
  found = error(ours, theirs)
  achieved(f'{found:.1e} of the spread, bound {BOUND:.0e}')
  assert found < BOUND
  assert error(ours, theirs.unload()) > 1e-2  # The adapter does something.


def test_merged_export_is_what_peft_merges(tmp_path, base, achieved):
  run, out = run_with_adapter(tmp_path / 'run', base), tmp_path / 'merged'
  args = ['--mode=export', f'--source={run}', f'--output={out}']
  assert main.main(['zaya_jax', *args]) == 0
  adapter_ = ['--mode=export', '--export.layout=peft', f'--source={run}']
  assert main.main(['zaya_jax', *adapter_, f'--output={tmp_path}/a']) == 0
  theirs = peft.PeftModel.from_pretrained(
    peer.build(CASE), str(tmp_path / 'a')
  ).merge_and_unload()
  found = error(load_lib.load(str(out)), theirs)
  achieved(f'{found:.1e} of the spread, bound {BOUND:.0e}')
  assert found < BOUND


@pytest.mark.parametrize('targets', [('attention', 'experts'), ('attention',)])
def test_we_read_what_peft_writes(tmp_path, base, achieved, targets):
  settings = peft.LoraConfig(
    r=3,
    lora_alpha=5,
    target_modules=MODULES,
    target_parameters=PARAMETERS if 'experts' in targets else None,
    init_lora_weights=True,
  )
  theirs = peft.get_peft_model(peer.build(CASE), settings).eval()
  draw = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, weight in theirs.named_parameters():
      if 'lora_' in name:
        weight.copy_(0.2 * torch.randn(weight.shape, generator=draw))
  theirs.save_pretrained(str(tmp_path / 'adapter'))
  args = ['--mode=import', f'--source={tmp_path}/adapter']
  args += [f'--restore={base}', f'--output={tmp_path}/run']
  assert main.main(['zaya_jax', *args]) == 0
  ours = load_lib.load(str(tmp_path / 'run'))
  found = error(ours, theirs)
  achieved(f'{found:.1e} of the spread, bound {BOUND:.0e}')
  assert found < BOUND
  flags = (tmp_path / 'run/config.flags').read_text()
  assert f'--lora.targets={",".join(targets)}' in flags


def test_error_is_seen_where_experts_change_places(tmp_path, base):
  """What would be wrong if ranks came first in A."""
  run, out = run_with_adapter(tmp_path / 'run', base), tmp_path / 'adapter'
  args = ['--mode=export', '--export.layout=peft', f'--source={run}']
  assert main.main(['zaya_jax', *args, f'--output={out}']) == 0
  theirs = peft.PeftModel.from_pretrained(peer.build(CASE), str(out)).eval()
  with torch.no_grad():
    for name, weight in theirs.named_parameters():
      if 'experts' in name and 'lora_A' in name:
        turned = weight.reshape(4, 3, -1).transpose(0, 1)
        weight.copy_(turned.reshape(weight.shape))
  assert error(load_lib.load(str(run)), theirs) > 100 * BOUND
  assert json.loads((out / 'adapter_config.json').read_text())['r'] == 3

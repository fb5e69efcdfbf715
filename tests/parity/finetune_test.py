# SPDX-License-Identifier: Apache-2.0
"""A model that was fine-tuned on conversations, back in `transformers`."""

import json

import numpy as np
import pytest
import torch
import transformers

from pipelines import loader
from pipelines.shards import manifest
from tests.support import chats, tuning
from zaya_jax import main
from zaya_jax.inference import load as load_lib


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """(the tuned run, what was exported of it)."""
  folder = tmp_path_factory.mktemp('finetune')
  tuning.model_folder(folder / 'hf', 'generation')
  text = tuning.write(folder / 'chats.jsonl')
  run_dir, out = folder / 'run', folder / 'out'
  args = [f'--data.input={text}', '--num_steps=300']
  # They are few and repeat: all are to be seen, each as often as it comes.
  args += ['--data.val_fraction=0', '--nodata.dedup']
  assert tuning.tune(folder / 'hf', run_dir, *args) == 0
  export = ['--mode=export', f'--source={run_dir}', f'--output={out}']
  assert main.main(['zaya_jax', *export]) == 0
  return run_dir, out


@pytest.fixture(scope='module')
def theirs(folders):
  """The exported model and tokenizer in `transformers`."""
  model = transformers.ZayaForCausalLM.from_pretrained(
    folders[1],
    dtype=torch.float32,
    attn_implementation='eager',
    experts_implementation='eager',
  )
  return model.eval(), transformers.AutoTokenizer.from_pretrained(folders[1])


def test_logits_are_the_same(folders, theirs):
  ours, (model, tokenizer) = load_lib.load(str(folders[0])), theirs
  ids = tokenizer.apply_chat_template(chats.CHAT)['input_ids']
  with torch.no_grad():
    expected = model(torch.tensor([ids])).logits[0].numpy()
  found = np.asarray(ours(np.array([ids])))[0]
  assert np.abs(found - expected).max() < 1e-5 * np.ptp(expected)


def test_shards_hold_what_transformers_would_train_on(folders, theirs):
  """Tokens and counting tokens of every conversation."""
  run_dir, (_, tokenizer) = folders[0], theirs
  found = {'tokens': [], 'counted': []}
  data = manifest.load(run_dir / 'data')
  for split in data.splits:
    for batch in loader.eval_batches(
      run_dir / 'data', split=split, seq_len=1024, batch_size=1
    ):
      segments, tokens = batch['segment_ids'][0], batch['tokens'][0]
      weights = np.insert(batch['weights'][0][:-1], 0, 0)
      for segment in range(1, segments.max() + 1):
        found['tokens'].append(tokens[segments == segment].tolist())
        found['counted'].append(tokens[(segments == segment) & (weights > 0)])
  expected = {}
  for row in tuning.conversations():
    out = tokenizer.apply_chat_template(
      row['messages'], return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = np.array(out['input_ids']), np.array(out['assistant_masks'])
    expected[tuple(ids.tolist())] = ids[mask == 1].tolist()
  assert len(found['tokens']) == len(tuning.conversations())  # None is cut.
  for tokens, counted in zip(found['tokens'], found['counted'], strict=True):
    assert counted.tolist() == expected[tuple(tokens)]


def test_it_has_learnt_to_answer_and_to_stop(folders, theirs):
  model, tokenizer = theirs
  settings = json.loads((folders[1] / 'generation_config.json').read_text())
  end = tokenizer.convert_tokens_to_ids('<|im_end|>')
  assert end in settings['eos_token_id']
  question, answer = tuning.conversations(4)[-1]['messages']
  ids = tokenizer.apply_chat_template(
    [question], add_generation_prompt=True, return_tensors='pt'
  )['input_ids']
  out = model.generate(ids, max_new_tokens=40, do_sample=False)
  ours = load_lib.load(str(folders[0]))
  text = ours.tokenizer.template.render([question], True)
  prompt, _ = ours.tokenizer.encode_chat([(text, False)])
  assert prompt.tolist() == ids[0].tolist()
  rows = ours.tokens([prompt], 40, temperature=0.0)
  mine = [row[0] for row in rows if row[0] >= 0]
  *new, last = out[0, ids.shape[1] :].tolist()
  assert mine == new
  assert last == end
  assert tokenizer.decode(new) == answer['content']

# SPDX-License-Identifier: Apache-2.0
"""The model card of an exported folder."""

from collections.abc import Sequence
from typing import Any

from zaya_jax.hub import names as hub_names

_LOAD = {
  'native': """\
```python
import transformers

model = transformers.ZayaForCausalLM.from_pretrained('PATH', dtype='auto')
tokenizer = transformers.AutoTokenizer.from_pretrained('PATH')
inputs = tokenizer('{prompt}', return_tensors='pt')
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))
```

It needs transformers 5.23 or newer. `lm_eval --model hf --model_args
pretrained=PATH --tasks TASK` scores it.
""",
  'legacy': """\
The tensors have the names of the first ZAYA1 release, in which attention and
experts are layers of their own. Zyphra's fork of transformers (branch
`zaya1-legacy`) reads them; transformers 5 does not: it needs
`--export.layout=native`.
""",
}
# What of the settings another run would need; paths stay private.
_SETTINGS = ('model.', 'optim.', 'data.seq_len', 'data.batch_size', 'seed')


def render(
  *,
  layout: hub_names.Layout,
  parameters: int,
  dtype: str,
  step: int,
  about: dict[str, Any],
  notes: Sequence[str],
) -> str:
  """The text of README.md.

  Args:
    layout: of the tensors.
    parameters: how many there are.
    dtype: of most of them.
    step: of the checkpoint.
    about: its meta; empty: a Hugging Face folder was converted.
    notes: what a user should know, a sentence each.
  """
  return '\n'.join(
    [
      '---',
      'library_name: transformers',
      'pipeline_tag: text-generation',
      'tags: [zaya, zaya_jax]',
      '---',
      '',
      '# A ZAYA1 model',
      '',
      f'A mixture-of-experts language model of the ZAYA1 family: '
      f'{parameters:,} parameters in {dtype}, written by zaya_jax in the '
      f'{layout} layout.',
      '',
      '## Load it',
      '',
      _LOAD[layout].format(prompt='def '),
      *(f'{note[0].upper()}{note[1:]}.\n' for note in notes),
      *_training(step, about),
    ]
  )


def _training(step: int, about: dict[str, Any]) -> list[str]:
  if not about:
    return []
  lines = ['## Training', '']
  if not about['tokens']:
    return [*lines, 'Imported weights, not trained any further.', '']
  known = {'steps': f'{step:,}', 'tokens': f'{about["tokens"]:,}'}
  names = {
    'val/bpb': 'held-out bits per byte',
    'val/loss': 'held-out loss',
    'train/loss': 'training loss',
  }
  for key, name in names.items():
    if about['metrics'].get(key) is not None:
      known[name] = f'{about["metrics"][key]:.4f}'
  lines += ['| what | |', '| --- | --- |']
  lines += [f'| {name} | {value} |' for name, value in known.items()]
  starts = tuple(f'--{name}' for name in _SETTINGS)
  flags = [x for x in about['flags'].splitlines() if x.startswith(starts)]
  return [*lines, '', 'Settings of zaya_jax:', '', '```', *flags, '```', '']

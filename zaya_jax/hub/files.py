# SPDX-License-Identifier: Apache-2.0
"""The small files of an exported folder: settings and tokenizer.

What an import kept comes back as it was. The rest follows from the model and
its tokenizer.
"""

import dataclasses
import json
import pathlib
from typing import Any

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import names as hub_names

# Keys of config.json that both layouts have and our configuration has not.
_SHARED = (
  'bos_token_id',
  'eos_token_id',
  'pad_token_id',
  'max_position_embeddings',
  'attention_dropout',
  'use_cache',
)
GENERATION = 'generation_config.json'
_MOST_SUPPRESSED = 1024  # Rows of the embedding that are no tokens.


def model_settings(
  config: config_lib.ModelConfig,
  layout: hub_names.Layout,
  dtype: str,
  kept: dict[str, Any],
  defaults: dict[str, Any],
) -> dict[str, Any]:
  """The content of `config.json`.

  Args:
    config: the model.
    layout: of the tensors.
    dtype: of most of them.
    kept: the `config.json` of an import; empty: there was none.
    defaults: of the keys that are not the model's.

  Raises:
    UsageError: if the layout cannot represent the model.
  """
  found = defaults | {key: kept[key] for key in _SHARED if key in kept}
  found |= hub_config.to_hf(config, layout)
  if kept and hub_config.layout_of(kept) == layout:
    before = hub_config.translate('config.json', kept).computed_as(config)
    if config.skip != 'off':
      before = dataclasses.replace(before, skip=config.skip)
    if before == config:
      found = dict(kept)
  old = layout == 'legacy' or 'torch_dtype' in found
  found['torch_dtype' if old else 'dtype'] = dtype
  if skip_differs(config, layout):  # For the record: no reader asks for it.
    found['zaya_jax_skip'] = config.skip
  return found


def skip_differs(
  config: config_lib.ModelConfig, layout: hub_names.Layout
) -> bool:
  """Whether code of this layout treats the skip class in another way."""
  return config.skip not in ('off', hub_config.SKIP[layout])


def defaults(
  tokenizer: tokenizer_lib.Tokenizer | None, seq_len: int
) -> dict[str, Any]:
  """Keys of `config.json` that are not the model's, without an import."""
  pad, bos, eos = tokenizer.special_ids if tokenizer else (None,) * 3
  return {
    'pad_token_id': pad,
    'bos_token_id': bos,
    'eos_token_id': eos,
    'max_position_embeddings': seq_len,
    'attention_dropout': 0.0,
    'use_cache': True,
  }


def generation_settings(
  tokenizer: tokenizer_lib.Tokenizer, vocab_size: int
) -> dict[str, Any]:
  """The content of `generation_config.json`: stops where our decoding does.

  Args:
    tokenizer: of the model.
    vocab_size: rows of the embedding. Those that are no tokens are suppressed.
  """
  padding = range(tokenizer.vocab_size, vocab_size)
  suppressed = 0 < len(padding) <= _MOST_SUPPRESSED
  return {
    'bos_token_id': tokenizer.bos_id,
    'eos_token_id': list(
      dict.fromkeys((tokenizer.eos_id, *tokenizer.stop_ids))
    ),
    'pad_token_id': tokenizer.pad_id,
    **({'suppress_tokens': list(padding)} if suppressed else {}),
  }


def write_tokenizer(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer, seq_len: int
) -> None:
  """Writes what `AutoTokenizer` needs, unless an import kept its own files."""
  tokenizer.save(folder)
  config = folder / 'tokenizer_config.json'
  if config.exists():
    return
  serialized = tokenizer.to_json()
  (folder / tokenizer_lib.FILE_NAME).write_bytes(serialized)
  added = {
    token['id']: token['content']
    for token in json.loads(serialized)['added_tokens']
  }
  pad, bos, eos = (added[i] for i in tokenizer.special_ids)
  write_json(
    config,
    {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'pad_token': pad,
      'bos_token': bos,
      'eos_token': eos,
      'clean_up_tokenization_spaces': False,
      'model_input_names': ['input_ids', 'attention_mask'],
      'model_max_length': seq_len,
      'padding_side': 'left',  # As convolutions over time need it.
      # Text is only ever text, unless there are tokens of a chat.
      'split_special_tokens': len(added) == len(set(tokenizer.special_ids)),
    },
  )


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
  """Writes one JSON object."""
  text = json.dumps(content, indent=2, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')

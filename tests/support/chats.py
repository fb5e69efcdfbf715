# SPDX-License-Identifier: Apache-2.0
"""Chat templates of the common kinds, and tokenizers to carry them."""

import json
import pathlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

CHATML = """\
{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] -}}
{{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

GENERATION = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' -}}
{% if message.role == 'assistant' %}
{% generation %}
{{- message.content | trim }}<|im_end|>{% endgeneration %}
{% else %}
{{- message.content }}<|im_end|>{% endif %}
{{ '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' -}}
    {{ (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

LLAMA = """\
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{{- bos_token }}
{%- set ns = namespace(count=0) %}
{%- if tools %}
    {{- "<|start_header_id|>tools<|end_header_id|>\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
    {{- date_string + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {%- if loop.index0 > 2 %}{% break %}{% endif %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
            {{- call.function | tojson }}
            {{- "<|eot_id|>" }}
        {%- endfor %}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' }}
        {{- '\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# Template and the special tokens that it writes.
ALL = {
  'chatml': (CHATML, ['<|endoftext|>', '<|im_start|>', '<|im_end|>']),
  'generation': (GENERATION, ['<|endoftext|>', '<|im_start|>', '<|im_end|>']),
  'gemma': (GEMMA, ['<pad>', '<bos>', '<eos>', '<start_of_turn>',
                    '<end_of_turn>']),
  'llama': (LLAMA, ['<|begin_of_text|>', '<|end_of_text|>',
                    '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>']),
}  # fmt: skip

CHAT = [
  {'role': 'user', 'content': ' Which <b>é</b> is it? '},
  {'role': 'assistant', 'content': '☃ "one"\n'},
  {'role': 'user', 'content': 'And?'},
  {'role': 'assistant', 'content': 'two'},
]


def tokenizer_folder(
  folder: pathlib.Path, name: str = 'chatml', *, as_file: bool = False
) -> pathlib.Path:
  """Writes a tokenizer of bytes with the template and tokens of `name`.

  Ids: the 256 bytes in the order of GPT-2's alphabet, then the special tokens.

  Args:
    folder: to make.
    name: of ALL.
    as_file: keeps the template in a file of its own.
  """
  template, special = ALL[name]
  folder.mkdir(parents=True, exist_ok=True)
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  inner = tokenizers.Tokenizer(
    models.BPE({c: i for i, c in enumerate(alphabet)}, [])
  )
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.post_processor = processors.ByteLevel(trim_offsets=True)
  inner.decoder = decoders.ByteLevel()
  inner.add_special_tokens(special)
  inner.save(str(folder / 'tokenizer.json'))
  begin = next((t for t in special if t in ('<bos>', '<|begin_of_text|>')), '')
  config = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'eos_token': {'content': special[-1], '__type': 'AddedToken'},
    'model_max_length': 1024,
  }
  if begin:
    config['bos_token'] = begin
  if as_file:
    (folder / 'chat_template.jinja').write_text(template)
  else:
    config['chat_template'] = template
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  return folder

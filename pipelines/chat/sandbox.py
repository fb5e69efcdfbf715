# SPDX-License-Identifier: Apache-2.0
"""Where chat templates run: as in `transformers`, and in Jinja's sandbox."""

import datetime
import functools
import json
import secrets
import traceback

import jinja2
from jinja2 import ext, nodes, sandbox, utils

Error = jinja2.TemplateError
# What a template writes around `{% generation %}`: no message can spell it.
MARK = f'\0{secrets.token_hex(8)}\0'


@functools.lru_cache(8)
def compiled(source: str) -> jinja2.Template:
  """Compiles in the environment that `transformers` gives to templates."""
  environment = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, ext.loopcontrols],
  )
  environment.filters['tojson'] = _tojson
  environment.globals |= {
    'raise_exception': _raise_exception,
    'strftime_now': lambda form: datetime.datetime.now().strftime(form),
    'dict': lambda *args, **kwargs: dict(*args, **kwargs),
    'namespace': _Namespace,
  }
  return environment.from_string(source)


def place(error: Exception) -> str:
  """Names the line of a template in which an error of `render` arose."""
  frames = traceback.walk_tb(error.__traceback__)
  # Jinja puts a frame of its own for each line of a template.
  lines = [n for f, n in frames if '__jinja_exception__' in f.f_globals]
  return f' (line {lines[-1]} of the template)' if lines else ''


class _Generation(ext.Extension):
  """`{% generation %}`: puts marks around what the assistant says."""

  tags = {'generation'}

  def parse(self, parser):
    """Parses one block."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    mark = nodes.Output([nodes.TemplateData(MARK)])
    return nodes.Scope([mark, *body, mark]).set_lineno(line)


class _Namespace(utils.Namespace):
  """Keeps a template from naming what is inside Python's objects."""

  def __setitem__(self, name, value):
    if name.startswith('_'):
      raise jinja2.exceptions.SecurityError(f'a template may not set {name}')
    super().__setitem__(name, value)


def _tojson(
  value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
):
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _raise_exception(message):
  raise jinja2.TemplateError(message)

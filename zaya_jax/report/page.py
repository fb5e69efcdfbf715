# SPDX-License-Identifier: Apache-2.0
"""report.html: one page that opens from disk, and plotly.min.js beside it.

The page fetches nothing else. What was written by a run, a prompt or a model is
text: escaped by the template, and in the data by JSON with < > & escaped.
"""

import base64
import dataclasses
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Sequence

import jinja2
import markupsafe

from zaya_jax import config as config_lib
from zaya_jax.report import figures as figures_lib
from zaya_jax.runtime import durable

_HERE = pathlib.Path(__file__).parent
_PLOTLY = 'plotly.min.js'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
  """What the template shows.

  Attributes:
    title: of the page.
    status: one line under it.
    summary: rows of texts; the first of each says what it is.
    columns: what the other texts of each row are of.
    figures: in their order.
    lacks: what a reader should know, a sentence each.
    details: (title, text), folded away at the end.
    live: whether the page will be written again.
    alone: whether plotly is in the page, which can be sent without it then.
    footer: the last line.
  """

  title: str
  status: str
  summary: Sequence[Sequence[str]]
  columns: Sequence[str]
  figures: Sequence[figures_lib.Figure]
  lacks: Sequence[str] = ()
  details: Sequence[tuple[str, str]] = ()
  live: bool = False
  alone: bool = False
  footer: str = ''


def render(page: Page) -> str:
  """The page as HTML."""
  template, style, script, script_hash = _parts()
  plotly_text = _plotly_text() if page.alone else ''
  return template.render(
    vars(page)
    | {
      'summary': {'columns': page.columns, 'rows': page.summary},
      'curves': any(
        choice.get('x_title') == 'step'
        for figure in page.figures
        if figure.kind == 'lines'
        for choice in figure.choices
      ),
      'data': {'figures': [vars(figure) for figure in page.figures]},
      'style': style,
      'script': script,
      'script_hash': script_hash,
      'plotly': plotly_text if page.alone else '',
      'plotly_hash': _hash(plotly_text) if page.alone else '',
    }
  )


def write(page: Page, place: pathlib.Path) -> None:
  """Writes a page whole or not at all, and plotly beside it.

  Raises:
    OSError: if it cannot be written.
  """
  place.parent.mkdir(parents=True, exist_ok=True)
  source, beside = plotly(), place.with_name(_PLOTLY)
  if (
    source
    and not page.alone
    and not (beside.exists() and beside.stat().st_size == source.stat().st_size)
  ):
    durable.replace(beside, source.read_bytes())
  durable.replace(place, render(page).encode('utf-8', 'replace'))


def path(output: str) -> pathlib.Path:
  """The page that `--output` names.

  Raises:
    UsageError: if it does not name one.
  """
  if not output.endswith('.html'):
    raise config_lib.UsageError(
      f'--output={output} must be the name of a page: FILE.html.'
    )
  return pathlib.Path(output)


def plotly() -> pathlib.Path | None:
  """The library in the package of the same name, which is not imported."""
  found = importlib.util.find_spec('plotly')
  if found is None or found.origin is None:
    return None
  path = pathlib.Path(found.origin).parent / 'package_data' / _PLOTLY
  return path if path.exists() else None


@functools.cache
def _parts():
  """Template, style, script and the script's hash."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE), autoescape=True
  )
  environment.policies['json.dumps_kwargs'] = {
    'allow_nan': False,
    'separators': (',', ':'),
  }
  style, *scripts = (
    (_HERE / name).read_text('utf-8')
    for name in ('page.css', 'plots.js', 'page.js')
  )
  script = ''.join(scripts)
  return (
    environment.get_template('page.html'),
    markupsafe.Markup(style),
    markupsafe.Markup(script),
    _hash(script),
  )


def _plotly_text() -> markupsafe.Markup:
  """The library, as it may stand in a page; '' where it is not installed."""
  source = plotly()
  text = source.read_text('utf-8') if source else ''
  # In a string of JavaScript the same, and no end of the script.
  return markupsafe.Markup(text.replace('</script', '<\\/script'))


def _hash(script: str) -> str:
  """Of an inline script: no other one runs."""
  digest = hashlib.sha256(script.encode()).digest()
  return f'sha256-{base64.b64encode(digest).decode()}'

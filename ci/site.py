# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml needs besides: pages outside of docs/, links, formulas.

The repository's address stands in one place, `[project.urls]` of pyproject.toml
as `Source`. Without one, links to sources are plain text and nothing is said of
where the repository is.
"""

import base64
import html
import json
import pathlib
import posixpath
import re
import tomllib
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
# What a browser would fetch from elsewhere.
FETCHED = re.compile(r'<[^>]*src="?https?://|<link [^>]*href="?https?://')
_LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)')
# As pymdownx.arithmatex writes formulas: \\(TeX\\) in a line, or \\[TeX\\].
_FORMULA = re.compile(
  r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S
)
_COLAB = 'https://colab.research.google.com/github/'
_GITHUB = 'https://github.com/'
# Where pages are on the site; others of docs/ keep their names.
_MOVED = {
  'README.md': 'index.md',
  'CHANGELOG.md': 'changelog.md',
  'docs/README.md': 'contents.md',
  'ops/native/README.md': 'native.md',
}


def places() -> dict[str, str]:
  """Each page of the repository with its place on the site."""
  docs = {f'docs/{p.name}': p.name for p in (ROOT / 'docs').glob('*.md')}
  notebooks = (ROOT / 'notebooks').glob('*.md')
  return (
    docs
    | _MOVED
    | {f'notebooks/{p.name}': f'notebooks/{p.name}' for p in notebooks}
  )


def pictures(name: str) -> dict[str, bytes]:
  """The stored figures of a notebook, as PNG files: 'CELL_OUTPUT' -> bytes."""
  path = ROOT / 'notebooks' / f'{name}.ipynb'
  found = {}
  for i, cell in enumerate(json.loads(path.read_text('utf-8'))['cells']):
    for j, output in enumerate(cell.get('outputs', ())):
      if png := output.get('data', {}).get('image/png'):
        found[f'{i}_{j}'] = base64.b64decode(''.join(png))
  return found


def executed(name: str) -> tuple[str, dict[str, bytes]]:
  """A notebook with its stored outputs: Markdown, and its files by name."""
  from nbconvert import exporters

  text, found = exporters.MarkdownExporter().from_filename(
    str(ROOT / 'notebooks' / f'{name}.ipynb'),
    {'output_files_dir': f'{name}_files', 'unique_key': name},
  )
  return text, found['outputs']


def unseen(output: str, name: str) -> str:
  """What the page of a notebook lacks, one sentence; '': nothing."""
  shown, stored = output.count(f'src="{name}_files/'), len(pictures(name))
  if shown == stored:
    return ''
  return f'{name}: {shown} of {stored} stored pictures are on its page.'


def formulas(output: str) -> str:
  """A page whose TeX is MathML, which browsers show without a script.

  Raises:
    Exception: of latex2mathml, if it does not know a command.
  """
  from latex2mathml import converter

  def one(match: re.Match) -> str:
    tex = html.unescape(match[2]).strip()
    if match[1] == 'span':
      return converter.convert(tex)
    made = converter.convert(tex, display='block')
    return f'<div class="formula">{made}</div>'

  return _FORMULA.sub(one, output)


def address() -> str:
  """Of the repository; '': pyproject.toml does not say it."""
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))
  return project['project'].get('urls', {}).get('Source', '').rstrip('/')


def page(source: str, text: str, there: Mapping[str, str], home: str) -> str:
  """A page as the site has it.

  Args:
    source: path in the repository.
    text: of the page.
    there: of `places`.
    home: of `address`.
  """
  # In code nothing is a link; `[text](path)` around code is.
  fences = re.split(r'(^```.*?^```$)', text, flags=re.M | re.S)
  links = lambda part: _LINK.sub(lambda m: _link(m, source, there, home), part)
  fences[::2] = map(links, fences[::2])
  text = ''.join(fences)
  if source.startswith('notebooks/') and home.startswith(_GITHUB):
    name = posixpath.splitext(source)[0]
    colab = f'{_COLAB}{home.removeprefix(_GITHUB)}/blob/main/{name}.ipynb'
    text = re.sub(
      r'^(# .*)$', rf'\1\n\n[Open in Colab]({colab})', text, count=1, flags=re.M
    )
  return text


def _link(
  match: re.Match, source: str, there: Mapping[str, str], home: str
) -> str:
  """One link of a page, from where the page is on the site."""
  mark, words, target = match.groups()
  path, _, anchor = target.partition('#')
  if not path or '://' in path:
    return match[0]
  path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
  place = there.get(path, '')
  if path.startswith('docs/') and not path.endswith('.md'):
    place = path.removeprefix('docs/')  # A picture.
  if place:
    here = posixpath.dirname(there[source])
    near = posixpath.relpath(place, here or '.')
    return f'{mark}[{words}]({near}{"#" * bool(anchor)}{anchor})'
  if not (ROOT / path).exists():
    return match[0]  # mkdocs complains.
  kind = 'tree' if (ROOT / path).is_dir() else 'blob'
  return f'[{words}]({home}/{kind}/main/{path})' if home else words


def on_config(config: Any) -> Any:
  """What mkdocs has read of mkdocs.yml, and the address."""
  config.repo_url = address() or None
  config.edit_uri = ''
  return config


def on_files(files: Any, config: Any) -> Any:
  """The pages of the site, in place of what mkdocs has found in docs/."""
  from mkdocs.structure import files as files_lib

  there, home = places(), address()
  for file in [f for f in files if f.src_uri.endswith('.md')]:
    files.remove(file)
  for source, place in there.items():
    text, more = (ROOT / source).read_text('utf-8'), {}
    if source.startswith('notebooks/'):
      text, more = executed(pathlib.Path(source).stem)
    made = page(source, text, there, home)
    files.append(files_lib.File.generated(config, place, content=made))
    for name, data in more.items():
      place = f'notebooks/{name}'
      files.append(files_lib.File.generated(config, place, content=data))
  return files


def on_page_content(output: str, page: Any, config: Any, files: Any) -> str:
  """Formulas, before the template is around the page."""
  return formulas(output)


def on_post_page(output: str, page: Any, config: Any) -> str:
  """Refuses a page that tells others who reads it, or lacks its pictures."""
  from mkdocs import exceptions

  source = pathlib.PurePath(page.file.src_uri)
  if source.parent.name == 'notebooks':
    if fault := unseen(output, source.stem):
      raise exceptions.PluginError(fault)

  if found := FETCHED.search(output):
    raise exceptions.PluginError(f'{page.file.src_uri} fetches: {found[0]}')
  return output

# SPDX-License-Identifier: Apache-2.0
"""The site: where its links lead, and that no address is made up."""

import pathlib
import re
import tomllib

import pytest

from tests.support import scripts

ROOT = pathlib.Path(__file__).parents[1]
in_checkout = pytest.mark.skipif(
  not (ROOT / '.gitignore').exists(), reason='Bazel gives a part of the files'
)
pytestmark = in_checkout
THERE = {
  'README.md': 'index.md',
  'docs/a.md': 'a.md',
  'docs/README.md': 'contents.md',
  'notebooks/n.md': 'notebooks/n.md',
}
HOME = 'https://github.com/them/it'


@pytest.fixture(scope='module')
def site():
  return scripts.load('ci/site.py')


@pytest.mark.parametrize(
  'source, text, made',
  [
    ('README.md', '[a](docs/a.md#b)', '[a](a.md#b)'),
    ('docs/a.md', '[r](../README.md)', '[r](index.md)'),
    ('docs/a.md', '[c](README.md)', '[c](contents.md)'),
    ('docs/a.md', '[n](../notebooks/n.md)', '[n](notebooks/n.md)'),
    ('notebooks/n.md', '[a](../docs/a.md)', '[a](../a.md)'),
    ('README.md', '![p](docs/images/p.png)', '![p](images/p.png)'),
    ('docs/a.md', '[`x`](../setup.py)', f'[`x`]({HOME}/blob/main/setup.py)'),
    ('docs/a.md', '[x](../configs)', f'[x]({HOME}/tree/main/configs)'),
    ('docs/a.md', '[s](#here) [e](https://e.org/a.md)', None),
    ('docs/a.md', '[w](wrong.md)', None),
    ('docs/a.md', '```bash\n[x](../setup.py)\n```\n', None),
  ],
)
def test_links_lead_to_where_pages_are_on_the_site(site, source, text, made):
  assert site.page(source, text, THERE, HOME) == (
    text if made is None else made
  )


def test_without_an_address_nothing_leads_to_one(site):
  text = '# N\n\n[`x`](../setup.py) and [a](../docs/a.md)\n'
  made = site.page('notebooks/n.md', text, THERE, '')
  assert made == '# N\n\n`x` and [a](../a.md)\n'
  made = site.page('notebooks/n.md', text, THERE, HOME)
  colab = 'colab.research.google.com/github/them/it/blob/main/notebooks/n.ipynb'
  assert f'# N\n\n[Open in Colab](https://{colab})' in made


def test_the_address_is_that_of_the_project(site, tmp_path, monkeypatch):
  project = (ROOT / 'pyproject.toml').read_text()
  said = tomllib.loads(project)['project'].get('urls', {}).get('Source', '')
  assert site.address() == said
  text = f'{project}\n[project.urls]\nSource = "{HOME}/"\n'
  if not said:
    (tmp_path / 'pyproject.toml').write_text(text)
    monkeypatch.setattr(site, 'ROOT', tmp_path)
    assert site.address() == HOME


def test_every_page_is_in_the_menu(site):
  menu = (ROOT / 'mkdocs.yml').read_text().partition('\nnav:')[2]
  assert sorted(re.findall(r'[\w/]+\.md', menu)) == sorted(
    site.places().values()
  )


@pytest.mark.parametrize(
  'tag, open_, close, display',
  [('span', '(', ')', 'inline'), ('div', '[', ']', 'block')],
)
def test_formulas_are_mathml(site, tag, open_, close, display):
  pytest.importorskip('latex2mathml', reason='is of requirements-docs.txt')
  formula = f'\\{open_}a &lt; \\sqrt{{b}}\\{close}'
  text = f'<p>x</p><{tag} class="arithmatex">{formula}</{tag}><code>$c$</code>'
  made = site.formulas(text)
  assert 'arithmatex' not in made and 'sqrt{' not in made
  assert f'display="{display}"' in made and '<msqrt>' in made
  assert made.startswith('<p>x</p><') and made.endswith('<code>$c$</code>')
  assert (display == 'block') == ('<div class="formula"><math' in made)


@pytest.mark.parametrize(
  'text, is_fetched',
  [
    ('<script src="https://e.org/a.js">', True),
    ('<img alt="" src=http://e.org/a.png>', True),
    ('<link rel="stylesheet" href="https://e.org/a.css">', True),
    ('<a href="https://e.org/a">', False),
    ('<script src="assets/a.js"><link href="a.css">', False),
  ],
)
def test_a_page_that_fetches_from_elsewhere_is_seen(site, text, is_fetched):
  assert bool(site.FETCHED.search(text)) == is_fetched


def test_a_page_without_its_pictures_is_seen(site):
  name = '01_train_zaya'
  found = site.pictures(name)
  assert len(found) == 3
  assert all(png.startswith(b'\x89PNG') for png in found.values())
  images = [f'<img alt="png" src="{name}_files/{key}.png">' for key in found]
  assert not site.unseen(''.join(images), name)
  assert site.unseen(''.join(images[1:]), name) == (
    f'{name}: 2 of 3 stored pictures are on its page.'
  )

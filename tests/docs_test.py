# SPDX-License-Identifier: Apache-2.0
"""README and docs/: links, flags, commands, programs and quoted messages."""

import ast
import os
import pathlib
import re
import subprocess
from importlib import metadata

import pytest

import zaya_jax
from tests.support import documents, scripts, tiny
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.config import flags

ROOT = documents.ROOT
PAGES = {str(p.relative_to(ROOT)): p for p in documents.PAGES}
KNOWN = {
  s.name
  for _, _, settings in flags.sections(config_lib.Config)
  for s in settings
}
_FLAG = re.compile(r'--(?:no)?([a-z]+\.[a-z][a-z_0-9]*)')
# What cannot run here, or is run by a test of its own.
NOT_RUN = (
  '--eval.tasks', '--plan.compile', '--restore', '--bench.', 'runs/tuned',
  'configs/small.flags', 'configs/finetune.flags', 'configs/lora.flags',
  '--mode=conform', '--mode=supervise', '--mode=serve', '--mode=import',
  'ZAYA1-8B',
)  # fmt: skip


in_checkout = pytest.mark.skipif(
  not (ROOT / '.gitignore').exists(), reason='Bazel gives a part of the files'
)


def pages(test):
  return pytest.mark.parametrize('page', PAGES.values(), ids=PAGES)(test)


def anchors(page) -> set[str]:
  """The anchors of a page's headings, as GitHub makes them."""
  heads = re.findall(r'^#+ (.*)$', page.read_text(), re.M)
  plain = (re.sub(r'[^\w\- ]', '', head).strip().lower() for head in heads)
  return {head.replace(' ', '-') for head in plain}


@in_checkout
@pages
def test_links_lead_somewhere(page):
  for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
    if target.startswith('http'):
      continue
    path, _, anchor = target.partition('#')
    there = (page.parent / path).resolve() if path else page
    assert there.exists(), target
    assert not anchor or anchor in anchors(there), target


@in_checkout
@pages
def test_named_files_exist(page):
  tops = 'zaya_jax|ops|pipelines|tests|configs|ci|deploy|benchmarks'
  named = re.findall(rf'`((?:{tops})/[\w/.-]+)', page.read_text())
  made = (
    'NAME',
    'X',
    'OPERATION',
    'ops/native/build',
  )  # Placeholders, and what is built.
  for name in named:
    if not any(mark in name for mark in made):
      assert (ROOT / name.rstrip('.')).exists(), name


@pages
def test_flags_exist(page):
  named = set(_FLAG.findall(page.read_text())) - {'section.name'}
  # `--model.conv_*` stands for several.
  unknown = {n for n in named if not any(k.startswith(n) for k in KNOWN)}
  assert not unknown, sorted(unknown)


def test_an_unknown_flag_is_seen():
  assert set(_FLAG.findall('`--model.widht=3` --nolog.tensorboard')) == {
    'model.widht',
    'log.tensorboard',
  }
  assert 'model.widht' not in KNOWN and 'log.tensorboard' in KNOWN


@pages
def test_commands_are_understood(page, monkeypatch):
  monkeypatch.chdir(ROOT)
  for words in documents.programs(page):
    # Of flagfiles those that are ours; X and runs/ stand for the reader's.
    mine = [
      word
      for word in words
      if not word.startswith('--flagfile=')
      or (ROOT / word.partition('=')[2]).is_file()
    ]
    config_lib.Config.parse([word for word in mine if word != '--help'])


def test_a_renamed_flag_is_an_error():
  with pytest.raises(config_lib.UsageError, match='Did you mean'):
    config_lib.Config.parse(
      ['--flagfile=configs/quickstart.flags', '--model.d_modell=3']
    )


def test_presets_are_those_of_the_repository():
  text = ''.join(page.read_text() for page in PAGES.values())
  named = set(re.findall(r'configs/\w+\.flags', text))
  named -= {'configs/X.flags', 'configs/NAME.flags'}
  ours = {f'configs/{path.name}' for path in (ROOT / 'configs').glob('*.flags')}
  assert named == ours


@pages
def test_targets_and_modules_exist(page):
  makefile = (ROOT / 'Makefile').read_text()
  lines = re.findall(r'^([a-z][a-z0-9 -]*):', makefile, re.M)
  targets = {target for line in lines for target in line.split()}
  for words in documents.commands(page):
    if words[0] == 'make' and '-C' not in words:
      asked = {w for w in words[1:] if '=' not in w and not w.startswith('-')}
      assert asked <= targets
    if words[:2] == ['python', '-m'] and words[2].startswith('benchmarks'):
      assert (ROOT / f'{words[2].replace(".", "/")}.py').is_file()


@pages
def test_python_is_python(page):
  for code in documents.blocks(page, 'python'):
    for node in ast.walk(ast.parse(code)):
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == 'zaya_jax':
          assert node.attr in zaya_jax.__all__


def test_flags_page_is_up_to_date():
  page = (ROOT / 'docs' / 'flags.md').read_text()
  assert page == scripts.load('ci/flags_page.py').page(), 'run: make docs'


def messages() -> list[str]:
  """All texts of the sources, '…' where they take a value."""
  found = []
  for top in ('zaya_jax', 'pipelines', 'ops'):
    for path in (ROOT / top).rglob('*.py'):
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
          parts = (getattr(v, 'value', '…') for v in node.values)
          found.append(''.join(p if isinstance(p, str) else '…' for p in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
          found.append(node.value)
  return found


def is_said(quote: str, said: list[str]) -> bool:
  """Whether some text has all pieces of a quotation, in their order."""
  pieces = [re.escape(piece) for piece in quote.split('…')]
  pattern = re.compile('.*'.join(pieces), re.S)
  return any(pattern.search(text) for text in said)


def test_quoted_messages_are_said():
  said = messages()
  text = (ROOT / 'docs' / 'troubleshooting.md').read_text()
  quotes = re.findall(r'^> (.*)$', text, re.M)
  assert len(quotes) > 20
  missing = [quote for quote in quotes if not is_said(quote.strip(), said)]
  assert not missing, missing
  assert not is_said('--num_steps=… is fewer than the …', said)


@pytest.mark.long
def test_the_readme_runs(tmp_path, monkeypatch, capfd):
  """From the quick start on, with a tiny model and few steps."""
  for name in ('configs', 'README.md'):
    os.symlink(ROOT / name, tmp_path / name)
  (tmp_path / 'mytexts').mkdir()
  for i in range(9):
    (tmp_path / 'mytexts' / f'{i}.txt').write_text(f'{i} of nine. ' * 90)
  monkeypatch.chdir(tmp_path)
  small = [*tiny.FLAGS, '--data.batch_size=8', '--generate.max_tokens=4']
  small += ['--nolog.tensorboard', '--eval.batches=1', '--mesh.replica=1']
  start = ['--flagfile=configs/quickstart.flags', '--data.input=mytexts']
  assert main.main(['', *start, *small, '--num_steps=2']) == 0
  done = []
  for words in documents.programs(ROOT / 'README.md'):
    skipped = any(mark in word for word in words for mark in NOT_RUN)
    if skipped or ' '.join(words) in done:
      continue
    trains = not any(word.startswith('--mode=') for word in words)
    steps = ['--num_steps=4'] if trains else []
    if any(word.startswith('--recipe=') for word in words):
      # Its phases are longer than a test.
      steps = ['--mode=plan', '--plan.devices=1']
    fresh = small if trains or '--mode=generate' in words else []
    # Whether this machine is fit to train is not the question.
    good = (0, 3) if '--mode=preflight' in words else (0,)
    assert main.main(['', *words, *fresh, *steps]) in good, words
    done.append(' '.join(words))
  said = capfd.readouterr().out
  assert 'resumed at step 2' in said
  assert 'saved step 4' in said
  assert pathlib.Path('runs/mine/checkpoints/4').is_dir()
  assert pathlib.Path('mine-hf/config.json').is_file()
  assert len(done) >= 8, done


@in_checkout
@pytest.mark.parametrize(
  'present, plugin, words',
  [
    ('', '', ''),
    ('NVIDIA', '', 'pip install "jax[cuda13]"'),
    ('AMD', '', 'pip install "jax[rocm7-local]"'),
    ('NVIDIA', 'jax_cuda13_plugin', ''),
  ],
)
def test_quickstart_says_what_a_gpu_needs(tmp_path, present, plugin, words):
  (tmp_path / 'lib/python3/site-packages' / plugin).mkdir(parents=True)
  devices = {'NVIDIA': '/none', 'AMD': '/none', present: '/dev/null'}
  given = [f'{name}={path}' for name, path in devices.items() if name]
  done = subprocess.run(
    ['make', '-n', 'quickstart', f'VENV={tmp_path}', *given],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
  )
  assert words in done.stdout
  assert ('docs/install.md' in done.stdout) == bool(words)


def test_extras_that_are_named_exist():
  words = (ROOT / 'docs' / 'install.md').read_text()
  extras = set(re.findall(r'jax\[([\w-]+)\]', words))
  assert extras == {'cuda12', 'cuda13', 'rocm7-local'}
  assert extras <= set(metadata.metadata('jax').get_all('Provides-Extra'))


def test_no_address_is_left_to_fill_in():
  for path in [*documents.PAGES, *(ROOT / 'notebooks').glob('*.ipynb')]:
    found = re.findall(r'/OWNER/|<this repository>', path.read_text())
    assert not found, path

# SPDX-License-Identifier: Apache-2.0
"""The notebooks: what they are made of, and what they come to when executed."""

import ast
import json
import math
import re
import statistics

import jupytext
import nbclient
import nbformat
import pytest

import zaya_jax
from tests import notebooks
from tests.support import xla

# By their last cells, for the tests.
RESULTS = {
  '01_train_zaya': """dict(
    before=before, rows=rows, text=text, probs=float(probs.sum()),
    share=share.tolist(), steps=[row['step'] for row in experts],
    best=best.tolist())""",
  '02_inside_cca_and_router': """dict(
    touched={k: v.tolist() for k, v in touched.items()}, measured=measured,
    expected=expected, information=information, skipped=skipped, same=same,
    losses=losses, loss=loss, kib=kib)""",
  '03_muon': """dict(
    near=near.tolist(), off=off, cosine=cosine, error=float(error), muon=muon,
    muon_loss=muon_loss, adamw_loss=adamw_loss)""",
  '04_scale_on_a_laptop': """dict(
    devices=len(jax.devices()), worst=worst, losses=reference.tolist(),
    continued=continued.tolist(), count=count, held=held, memory=memory,
    speed=speed.tolist(),
    expert=specs(meshes['fsdp 2, expert 4'])['layers/experts/down'])""",
  '05_a_whole_run': """dict(
    steps=steps, evals=evals, answers=answers, documents=documents,
    forged=forged, refused=refused, totals=totals)""",
  '06_ablations': """dict(
    score={v: s.tolist() for v, s in score.items()}, best=best,
    gqa=difference('gqa'), wins=wins('gqa'), spread=spread)""",
}
FIGURES = {
  '01_train_zaya': 3,
  '02_inside_cca_and_router': 4,
  '03_muon': 2,
  '04_scale_on_a_laptop': 4,
  '05_a_whole_run': 2,
  '06_ablations': 2,
}


def code(notebook) -> list[str]:
  cells = (c.source for c in notebook.cells if c.cell_type == 'code')
  return [c.replace('%pip', 'pass  # pip') for c in cells]


def run(name, folder, *xla_flags):
  """Executes a notebook; returns what it computed."""
  notebook = notebooks.read(name)
  last = f'import json\nprint(json.dumps({RESULTS[name]}, default=float))'
  notebook.cells.append(nbformat.v4.new_code_cell(last))
  notebooks.execute(notebook, folder, *xla_flags)
  found = notebooks.pictures(notebook)
  assert len(found) == FIGURES[name]
  assert all(len(png) > 5_000 for png in found)
  return json.loads(notebook.cells[-1].outputs[0].text)


def test_all_notebooks_are_tested():
  assert set(notebooks.NAMES) == set(RESULTS) == set(FIGURES)


@pytest.mark.parametrize('name', notebooks.NAMES)
def test_the_pair_is_the_same(name):
  """Where not: jupytext --sync notebooks/*.md"""
  mine = notebooks.read(name)
  other = jupytext.read(notebooks.FOLDER / f'{name}.md')
  assert [(c.cell_type, c.source) for c in mine.cells] == [
    (c.cell_type, c.source) for c in other.cells
  ]


@pytest.mark.parametrize('name', notebooks.NAMES)
def test_stored_outputs_are_those_of_the_code(name):
  """Where not: make notebooks ARGS=NAME, then ARGS='--keep NAME'."""
  notebook = notebooks.read(name)
  assert not notebooks.stale(notebook)
  assert len(notebooks.pictures(notebook)) == FIGURES[name]
  outputs = [out for c in notebook.cells for out in c.get('outputs', ())]
  assert not [out for out in outputs if out.output_type == 'error']
  # Nothing of the machine that executed it.
  text = ''.join(out.get('text', '') for out in outputs)
  assert not re.search(r'/(home|tmp|root|work)\b', text)
  path = notebooks.FOLDER / f'{name}.ipynb'
  assert path.stat().st_size < 500_000


def test_outputs_of_other_code_are_stale(tmp_path, monkeypatch):
  name = notebooks.NAMES[0]
  notebook = notebooks.read(name)
  cell = next(c for c in notebook.cells if c.cell_type == 'code')
  cell.source += '\n'
  assert notebooks.stale(notebook)
  nbformat.write(notebook, tmp_path / f'{name}.ipynb')
  monkeypatch.setattr(notebooks, 'OUTPUT', tmp_path)
  with pytest.raises(ValueError, match='has changed since'):
    notebooks.keep(name)


def test_streams_are_joined_and_shortened():
  line = lambda i, name: nbformat.v4.new_output(
    'stream', name=name, text=f'{i}\n'
  )
  figure = nbformat.v4.new_output('display_data', {'image/png': 'AAAA'})
  outputs = [line(i, 'stdout') for i in range(40)]
  made = notebooks.shortened(
    [line(0, 'stderr'), *outputs, figure, line(9, 'stdout')]
  )
  assert [out.output_type for out in made] == [
    *('stream', 'display_data', 'stream')
  ]
  lines = made[0].text.splitlines()
  assert len(lines) == 25 and lines[11:14] == ['11', '...', '28']
  assert made[2].text == '9\n'


@pytest.mark.parametrize('name', notebooks.NAMES)
def test_it_installs_the_repository_that_it_lies_in(name):
  (cell,) = [
    cell.source for cell in notebooks.read(name).cells if '%pip' in cell.source
  ]
  assert 'except ImportError' in cell
  assert '%pip install --quiet matplotlib ..\n' in cell


@pytest.mark.parametrize('name', notebooks.NAMES)
def test_only_the_public_interface_is_used(name):
  for cell in code(notebooks.read(name)):
    for node in ast.walk(ast.parse(cell)):
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == 'zaya_jax':
          assert node.attr in zaya_jax.__all__
      if isinstance(node, ast.ImportFrom):
        top = node.module.split('.')[0]
        assert top not in ('ops', 'pipelines', 'zaya_jax')
      if isinstance(node, ast.Import):
        assert not any(a.name.startswith('zaya_jax.') for a in node.names)


@pytest.mark.long
def test_train_zaya(tmp_path):
  found = run('01_train_zaya', tmp_path)
  before, rows = found['before'], found['rows']
  assert abs(before[0]['train/loss'] - math.log(320)) < 0.2
  assert rows[: len(before)] == before  # Resumed, not begun anew.
  assert before[-1]['step'] == 200 and rows[-1]['step'] == 260
  scores = [row['val/bpb'] for row in rows if 'val/bpb' in row]
  assert len(scores) == 3 and scores == sorted(scores, reverse=True)
  assert scores[-1] < 2.8
  assert found['steps'][-1] == 200
  # All tokens of a step to one expert, but not always to the same; then spread.
  loads = [row['moe/load_max'] for row in rows if 'moe/load_max' in row]
  assert max(loads) > 3.5 and loads[-1] < 2.2
  busiest = [max(max(layer) for layer in row) for row in found['share']]
  assert max(busiest[:20]) > 0.9 and max(busiest[-5:]) < 0.6
  first = [max(range(5), key=row[1].__getitem__) for row in found['share'][:20]]
  assert len(set(first)) > 1
  assert found['text'] and abs(found['probs'] - 1) < 1e-5
  assert chr(found['best'][0]).isalpha()


@pytest.mark.long
def test_inside_cca_and_router(tmp_path):
  found = run('02_inside_cca_and_router', tmp_path)
  assert found['touched'] == {'k_proj': [0], 'k_norm': [0, 1, 2], 'v': [0, 1]}
  assert 0 <= found['measured'] - found['expected'] < 4  # Bytes of a mask.
  assert [round(x) for x in found['kib'].values()] == [320, 80, 40]
  assert max(found['information']) > 0.25
  assert found['same'] < 1
  assert found['skipped'] == sorted(found['skipped'])
  assert found['skipped'][0] == 0 and found['skipped'][-1] == 1
  assert found['losses'][0] == pytest.approx(found['loss'], abs=1e-6)
  assert found['losses'][-1] > found['loss'] + 0.05


@pytest.mark.long
def test_a_wrong_equation_fails(tmp_path):
  notebook = notebooks.read('02_inside_cca_and_router')
  for cell in notebook.cells:
    cell.source = cell.source.replace('num_steps=180', 'num_steps=2').replace(
      "V = np.concatenate([h @ w['v_current'], before",
      "V = np.concatenate([h @ w['v_current'], h",
    )
  with pytest.raises(nbclient.exceptions.CellExecutionError, match=r'attn\.v'):
    notebooks.execute(notebook, tmp_path, *xla.fast_compile())


@pytest.mark.long
def test_muon(tmp_path):
  found = run('03_muon', tmp_path)
  assert found['near'] == sorted(found['near'])
  assert found['near'][0] < 0.1 and found['near'][-1] > 0.6
  assert found['off'] < 1e-10 and found['cosine'] > 0.9
  assert found['error'] < 1e-5
  assert found['muon']['flops'] == pytest.approx(444e12, rel=0.01)
  assert found['muon']['flops_symmetric'] == pytest.approx(306e12, rel=0.01)
  assert found['muon_loss'] < found['adamw_loss']


@pytest.mark.long
def test_scale_on_a_laptop(tmp_path):
  # It compiles far longer than it computes.
  found = run('04_scale_on_a_laptop', tmp_path, *xla.fast_compile())
  assert found['devices'] == 8
  assert found['worst'] < 1e-4
  assert len(found['losses']) == 20 and found['losses'][-1] < 4.5
  assert len(found['continued']) == 24
  assert found['continued'][:20] == pytest.approx(found['losses'], abs=1e-4)
  assert found['count']['total'] == 8_840_488_784
  assert found['count']['active'] == 753_608_528
  assert found['held']['total'] < found['held']['capacity'] == 192e9
  planned, *others = found['memory'].values()
  assert all(planned < other for other in others)
  assert found['speed'] == sorted(found['speed'])
  assert found['expert']['spec'] == [None, 'expert', 'fsdp', None]


@pytest.mark.long
def test_a_whole_run(tmp_path):
  found = run('05_a_whole_run', tmp_path, *xla.fast_compile())
  steps, evals = found['steps'], found['evals']
  assert [row['phase'] for row in steps] == sorted(
    (row['phase'] for row in steps), key=['python', 'mixed', 'long'].index
  )
  # What nobody has trained on is not learnt, and what comes late is.
  sums = {phase: [] for phase in ('python', 'mixed', 'long')}
  for row in evals:
    sums[row['phase']].append(row['val/bpb/sums'])
  assert min(sums['python']) > 3 > sums['mixed'][-1]
  assert steps[-1]['optim/lr'] < 1e-3 < steps[0]['optim/lr'] + 1e-2
  checks = {
    row['check']: row['valid'] for row in found['answers'] if 'check' in row
  }
  assert checks == dict.fromkeys(('chain', 'rows', 'shards', 'content'), True)
  assert {row['source'] for row in found['documents']} == {'python', 'sums'}
  assert any('sums.jsonl:' in row['document'] for row in found['documents'])
  assert [row['check'] for row in found['forged']] == ['chain']
  assert 'phase "python"' in found['refused']
  tokens = {
    (row['phase'], row['source']): row['tokens'] for row in found['totals']
  }
  assert tokens['mixed', 'python'] == tokens['mixed', 'sums']
  assert len(tokens) == 6


@pytest.mark.long
def test_ablations(tmp_path):
  found = run('06_ablations', tmp_path)
  score = found['score']
  assert set(score) == {'cca', 'gqa', 'no eda'} == set(found['best'])
  assert all(len(set(runs)) == 4 for runs in score.values())
  by_seed = [g - c for g, c in zip(score['gqa'], score['cca'], strict=True)]
  mean, half = found['gqa']
  assert mean == pytest.approx(statistics.fmean(by_seed))
  # Student's t of four, by its table.
  assert half == pytest.approx(3.182 * statistics.stdev(by_seed) / 2, rel=1e-3)
  assert found['spread'] == pytest.approx(statistics.stdev(by_seed))
  assert mean > half > 0 and found['wins'] == 1

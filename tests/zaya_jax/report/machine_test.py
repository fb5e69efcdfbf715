# SPDX-License-Identifier: Apache-2.0
"""machine.json as figures, and its page from the command line."""

import pytest

from tests.support import curves
from zaya_jax import main
from zaya_jax.bench.machine import file
from zaya_jax.report import machine


def section(*points, unit='GB/s', **more):
  return file.section(unit, points=points, **more)


def products():
  """Rates that tell M, N and K apart."""
  return [
    curves.point(1, 1.0, f'{m}x{n}x{k} bfloat16', 1, 1e12 * (m + 10 * n + k))
    for m in (1, 2)
    for n in (3, 4)
    for k in (500, 600)
  ]


def test_curve_has_its_sizes_and_rates():
  points = [curves.point(2**k, 1.0, 'triad', 1, 3e9 * 2**k) for k in (3, 1)]
  [found] = machine.of_section('memory', section(*points))
  [choice] = found.choices
  [trace] = choice['traces']
  assert trace['name'] == 'triad x 1'
  assert trace['x'] == [2, 8] and trace['y'] == [6.0, 24.0]
  assert choice['x_title'] == 'bytes' and choice['y_title'] == 'GB/s'


def test_products_are_a_map_for_each_k():
  model = curves.point(1, 1.0, 'attn/q 1x3x500 bfloat16', 1, 1e12)
  maps, points = machine.of_section(
    'gemm', section(*products(), model, unit='TFLOP/s')
  )
  assert [choice['label'] for choice in maps.choices] == ['K = 500', 'K = 600']
  last = maps.choices[maps.start]
  assert last['x'] == [3, 4] and last['y'] == ['M = 1', 'M = 2']
  assert last['z'] == [[631.0, 641.0], [632.0, 642.0]]
  assert {choice['most'] for choice in maps.choices} == {642.0}
  # Those of the model are in the table alone, which begins with the best.
  rows = points.choices[0]['rows']
  assert rows[0][0] == '2x4x600 bfloat16' and rows[0][-1] == '100%'
  assert rows[-1][0].startswith('attn/q') and len(rows) == 9


def test_shape_without_time_is_a_hole():
  [maps, _] = machine.of_section(
    'gemm', section(*products()[1:], unit='TFLOP/s')
  )
  assert maps.choices[0]['z'][0][0] is None


def test_nothing_measured_says_why():
  [found] = machine.of_section('collectives', section(notes=('One device.',)))
  assert found.choices == [] and found.missing == 'One device.'


def test_page_has_figures_that_can_be_told_apart():
  nouns = ('memory', 'storage', 'peak')
  points = [
    curves.point(1, 1.0, 'a'), curves.point(2, 1.0, 'a'),
    curves.point(1, 1.0, 'b'),
  ]  # fmt: skip
  made = curves.machine(**{noun: points for noun in nouns})
  late = section(*products(), unit='TFLOP/s', missing=('head x 1',))
  made.sections['gemm'] = late
  page = machine.make(made, 'm.json')
  names = [figure.id for figure in page.figures]
  assert len(set(names)) == len(names) == 8
  assert page.lacks == ['gemm: there was no time for head x 1.']
  assert [row[0] for row in page.summary] == [*nouns, 'gemm']


@pytest.fixture
def written(tmp_path):
  path = tmp_path / 'node.json'
  file.write(str(path), curves.machine(memory=[curves.point(4, 1.0)]))
  return path


def test_command_draws_a_machine_file(written, capsys):
  assert main.main(['zaya_jax', '--mode=report', f'--source={written}']) == 0
  page = written.with_suffix('.html')
  assert capsys.readouterr().out == f'{page}\n'
  assert '1 x X (gpu) of 1 process' in page.read_text()


def test_edited_machine_file_is_refused(written, capsys):
  written.write_text(
    written.read_text().replace('"seconds": 1.0', '"seconds": 2')
  )
  assert main.main(['zaya_jax', '--mode=report', f'--source={written}'])
  assert 'node.json' in capsys.readouterr().err
  assert not written.with_suffix('.html').exists()


@pytest.mark.parametrize(
  'more, said',
  [
    (('--source=nix.json',), 'a .json file of --mode=bench'),
    (('--source={0}', '--serve'), '--serve shows runs'),
    (('--source={0}', '--output=page.txt'), '--output=page.txt'),
  ],
)
def test_bad_input_is_one_sentence(written, capsys, more, said):
  words = [word.format(written) for word in more]
  assert main.main(['zaya_jax', '--mode=report', *words]) == 2
  assert said in capsys.readouterr().err

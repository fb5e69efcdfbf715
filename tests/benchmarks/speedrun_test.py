# SPDX-License-Identifier: Apache-2.0
"""The table of a speedrun, and that the page has the runs on record."""

import pytest

from benchmarks import speedrun


def row(program, seed, curve, target=0.7, text=0):
  """A run with scores (seconds, bits per byte), its start 30 s."""
  scores = [
    {'step': i, 'train_s': s, 'whole_s': s + 30, 'bpb': bpb}
    for i, (s, bpb) in enumerate(curve)
  ]
  return {
    'program': program, 'preset': 'small', 'flags': '', 'shape': '8x512',
    'seconds': 90.0, 'target': target, 'lr': 0.02, 'seed': seed,
    'counts': True, 'device': 'NVIDIA H100', 'date': '2026-11-25T16:00',
    'train_s': curve[-1][0], 'bpb': curve[-1][1], 'curve': scores,
    'corpus': {'train': {'sha256': f'{text:064}'}},
  }  # fmt: skip


def cells(line):
  return [cell.strip() for cell in line.strip('|').split('|')]


def lines(rows):
  return [line for line in speedrun.table(rows) if line.startswith('|')][2:]


def test_seconds_are_of_the_first_score_at_the_target():
  fast = [
    row('strong', s, [(10, 0.9), (20 + s, 0.7), (80, 0.6)]) for s in (0, 2)
  ]
  (line,) = lines(fast)
  assert cells(line)[:2] == ['strong', '8x512, 0.02']
  # Of 20 and 22: 12.71 standard errors of 1.
  assert cells(line)[2:5] == ['21.0 ± 12.7', '51.0 ± 12.7', '2 of 2']


def test_who_does_not_get_there_is_told_and_comes_last():
  rows = [
    row('adamw', 0, [(10, 0.9), (20, 0.69)]),
    row('adamw', 1, [(10, 0.9), (90, 0.7123)]),
    row('strong', 0, [(10, 0.9), (60, 0.7)]),
  ]
  strong, adamw = lines(rows)
  assert cells(strong)[:3] == ['strong', '8x512, 0.02', '60.0']
  assert cells(adamw)[2:6] == ['20.0', '50.0', '1 of 2', '0.7123 after 90 s']
  none = [row('adamw', 0, [(90, 0.8)])]
  assert cells(lines(none)[0])[2:5] == ['', '', '0 of 1']


def test_runs_on_another_text_are_other_runs():
  rows = [row('strong', s, [(20, 0.6)], text=s) for s in (0, 1)]
  assert [cells(line)[4] for line in lines(rows)] == ['1 of 1', '1 of 1']
  assert {cells(line)[7] for line in lines(rows)} == {'00000000'}


def test_each_target_has_a_table_and_trials_have_none():
  rows = [row('strong', 0, [(60, 0.6)], target) for target in (0.7, 0.65, None)]
  text = '\n'.join(speedrun.table(rows))
  assert text.index('To 0.65 bits') < text.index('To 0.7 bits')
  assert len(lines(rows)) == 2 + 2  # A head and its rule stand between.


def test_page_is_replaced_between_its_marks():
  text = f'a\n{speedrun._BEGIN}\nold\n{speedrun._END}\nb\n'
  found = speedrun.page(text, [])
  assert 'old' not in found and 'No run is on record yet.' in found
  assert found.startswith('a\n') and found.endswith('\nb\n')
  assert speedrun.page(found, []) == found


def test_docs_have_the_runs_on_record():
  text, rows = speedrun.PAGE.read_text(), speedrun.recorded()
  assert rows
  assert text == speedrun.page(text, rows), (
    'run python -m benchmarks.speedrun --page'
  )


@pytest.mark.parametrize('name', ['zaya_jax', 'adamw', 'strong'])
def test_every_program_has_a_time(name):
  args = speedrun._parser().parse_args([f'--{name}_seconds=7'])
  assert getattr(args, f'{name}_seconds') == 7

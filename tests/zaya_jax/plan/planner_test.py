# SPDX-License-Identifier: Apache-2.0
"""The plan of the released model against numbers worked out by hand."""

import json
import subprocess
import sys

import pytest

from tests.support import released
from zaya_jax import main
from zaya_jax.plan import planner
from zaya_jax.runtime import chips


@pytest.fixture(scope='module')
def plan():
  return planner.make(released.parse('--plan.devices=1024'))


def test_released_model_on_1024_devices(plan):
  assert plan['parameters'] == {
    'total': 8_840_488_784,
    'active': 753_608_528,
  }
  assert plan['mesh']['replica'] == 1024
  # 4,096 windows of 4,096 tokens: four windows a device.
  assert plan['tokens'] == {'step': 2**24, 'device': 2**14, 'parts': 1}
  # 2 x 2 heads x 128 channels x 2 bytes x 40 layers.
  assert plan['cache_bytes_per_token'] == 40 * 1024
  held = plan['memory']
  assert held['total'] < held['capacity'] == 192e9
  assert not [f for f in plan['lint'] if not f['good']]


def test_flops_of_a_token_by_hand(plan):
  flops = plan['flops_per_token']
  # Six for each weight; 40 layers.
  assert flops['projections'] == 6 * 40 * 2048 * (1024 + 256 + 256 + 1024)
  assert flops['convolutions'] == 6 * 40 * 1280 * (2 + 2 * 128)
  assert flops['router'] == 6 * 40 * (2048 * 256 + 2 * 256**2 + 256 * 17)
  assert flops['experts'] == 6 * 40 * 3 * 2048 * 2048
  assert flops['head'] == 6 * 2048 * 262_272
  # Query t of 4,096 sees t keys: half of the window and half a token.
  assert flops['attention'] == 6 * 40 * 2 * 1024 * 2048.5
  assert flops['total'] == sum(list(flops.values())[:-1])


def test_checkpoint_and_storage_by_hand(plan):
  # Parameters, Muon's momentum, two moments of AdamW; the vector that scales
  # layer 0's missing state is stored, and counters and moments of the bias.
  saved = 4 * (8_840_488_784 + 8_289_167_360 + 2 * 551_321_424)
  assert 0 < plan['checkpoint']['bytes'] - saved < 20_000
  data = plan['data']
  # 4,096 windows, each from a record of 32,768 tokens of 4 bytes, of which 0.37
  # are left: 11.84 pages of 4 KiB.
  assert data['reads_per_step'] == 4_096
  assert data['pages_per_step'] == 4_096 * 12
  assert data['step_s_at_limit'] == pytest.approx(0.702, abs=5e-4)
  assert data['iops'] * plan['time']['step'] == pytest.approx(4_096 * 12)


def test_budget_follows_from_the_step(plan):
  time = plan['time']
  assert time['budget_tokens'] == 476_837 * 2**24
  days = time['budget_tokens'] / time['tokens_per_day']
  assert time['budget_days'] == pytest.approx(days)
  assert time['device_hours'] == pytest.approx(days * 24 * 1024)
  one = planner.make(
    released.parse('--plan.devices=1024', '--plan.tokens=1000000000')
  )
  assert one['time']['budget_tokens'] == 1_000_000_000


def test_throughput_and_utilization_by_hand(plan):
  time = plan['time']
  assert time['tokens_per_second'] == pytest.approx(2**24 / time['step'])
  done = 8_745_455_616 * 2**24
  peak = 1024 * 1307.4e12
  assert time['mfu'] == pytest.approx(done / (time['step'] * peak))
  assert 0.1 < time['mfu'] < 0.56


def test_parts_of_a_step_add_up(plan):
  time = plan['time']
  parts = sum(p['seconds'] for p in (*time['parts'], *time['update']))
  assert time['step'] == pytest.approx(parts + time['network_exposed'])
  sent = sum(c['seconds'] for c in plan['collectives'])
  both = time['network_exposed'] + sum(time['network_hidden'].values())
  assert both == pytest.approx(sent)


def test_command_prints_tables_and_writes_json(tmp_path, capsys):
  path = tmp_path / 'new' / 'plan.json'
  words = [
    f'--flagfile={released.FLAGFILE}',
    '--mode=plan',
    '--plan.devices=1024',
    '--nojson',
  ]
  both = f'--output={path},{path.with_suffix(".svg")}'
  assert main.main(['zaya_jax', *words, both]) == 0
  shown = capsys.readouterr().out
  assert '8,840,488,784' in shown
  written = f'wrote {path}, {path.with_suffix(".svg")}'
  assert shown.splitlines()[-1] == written
  # What was planned can be read back, and nothing half-written is left.
  assert json.loads(path.read_text())['devices'] == 1024
  assert {p.name for p in path.parent.iterdir()} == {'plan.json', 'plan.svg'}


@pytest.mark.parametrize('word', ['--json', '--json=auto'])
def test_command_prints_json_in_a_pipe(tmp_path, capsys, word):
  path = tmp_path / 'plan.json'
  words = [f'--flagfile={released.FLAGFILE}', f'--output={path}', word]
  assert main.main(['zaya_jax', 'plan', *words]) == 0
  out, err = capsys.readouterr()
  assert json.loads(out) == json.loads(path.read_text())
  assert err == f'wrote {path}\n'


def test_plan_needs_no_jax():
  """It takes seconds to import, which nobody waits for in vain."""
  script = (
    'import sys; from zaya_jax import main; '
    'code = main.main(["zaya_jax", *sys.argv[1:]]); '
    'print([name for name in ("jax", "flax") if name in sys.modules]); '
    'sys.exit(code)'
  )
  words = f'--flagfile={released.FLAGFILE}', '--mode=plan'
  done = subprocess.run(
    [sys.executable, '-c', script, *words], capture_output=True, text=True
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.splitlines()[-1] == '[]'


@pytest.mark.parametrize('chip', chips.CHIPS)
def test_every_chip_has_a_plan(chip):
  plan = planner.make(released.parse('--plan.devices=8', f'--plan.chip={chip}'))
  assert plan['time']['step'] > 0
  assert bool(plan['lint']) == (chip == 'mi300x')


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['--plan.chip=tpu'], '--plan.chip=tpu'),
    (['--plan.devices=8', '--mesh.replica=3'], '--plan.devices=8 is not'),
    (['--plan.devices=3'], '--data.batch_size=4096 must be a multiple of 3'),
    (['--output=plan.txt'], 'must end in .json or .svg'),
  ],
)
def test_bad_flags_are_one_sentence_and_exit_code_2(words, sentence, capsys):
  words = [f'--flagfile={released.FLAGFILE}', '--mode=plan', *words]
  assert main.main(['zaya_jax', *words]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert sentence in line

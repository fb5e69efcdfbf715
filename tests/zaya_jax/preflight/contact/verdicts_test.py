# SPDX-License-Identifier: Apache-2.0
"""What a stage has shown, of files as its commands write them."""

import dataclasses
import json

import pytest

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record
from zaya_jax.preflight.contact import child, verdicts

DEVICE = {
  'chip': 'AMD Instinct MI300X',
  'platform': 'rocm',
  'devices': 8,
  'has_gpu': True,
  'library': '',
}


@pytest.fixture
def root(tmp_path):
  (tmp_path / 'logs').mkdir()
  device(tmp_path)
  return tmp_path


def device(root, **changes):
  (root / 'logs/device.out').write_text(json.dumps({**DEVICE, **changes}))


def ended(name='one', code=0, last=''):
  return child.Ended(name=name, code=code, seconds=1.0, last=last)


def row(outcome, engine='hip', op='experts', dtype='bfloat16', default=True):
  return {
    'op': op,
    'engine': engine,
    'case': 'skewed',
    'dtype': dtype,
    'outcome': outcome,
    'error': 2.0,
    'said': 'an error',
    'default': default,
  }


def kernels(root, *rows, code=0, progress=''):
  text = '\n'.join(map(json.dumps, rows))
  (root / 'logs/check_experts.out').write_text(f'{text}\n')
  (root / 'logs/check_experts.err').write_text(progress)
  return verdicts.kernels(root, [ended('check_experts', code)])


def test_right_kernels_are_counted(root):
  found = kernels(root, row('right'), row('left out'), row('right', 'triton'))
  assert found.outcome == 'right' and found.said.startswith('2 comparisons')


def test_wrong_kernel_is_named_and_the_flag_that_avoids_it(root):
  rows = row('wrong'), row('right', 'triton'), row('failed', 'hopper')
  # What is right on some inputs alone is no way out.
  found = kernels(root, *rows, row('right', 'hopper'), row('right', 'xla'))
  assert found.outcome == 'wrong'
  assert 'experts by hip on skewed bfloat16: an error' in found.said
  one, other = found.advice
  assert 'Do not use experts by hip here: --ops.experts=triton' in one
  assert 'Do not use experts by hopper' in other


def test_kernels_without_time_are_late_and_repeated(root):
  found = kernels(root, row('right'), row('no time', engine=''))
  assert found.outcome == 'late' and 'all of experts' in found.said
  assert found.unfinished == ('check_experts',)
  wrong = kernels(root, row('wrong'), row('no time', engine=''))
  assert wrong.outcome == 'wrong'


def test_without_a_right_engine_nobody_should_train(root):
  found = kernels(root, row('wrong'), row('wrong', 'xla'))
  assert len(found.advice) == 2
  assert all('no engine that is right here' in line for line in found.advice)


@pytest.mark.parametrize(
  'one',
  [
    row('wrong', default=False),  # Only when named.
    row('failed', dtype='float32'),  # Nobody trains in it there.
  ],
)
def test_what_no_training_takes_is_said_and_no_fault(root, one):
  found = kernels(root, one, row('right', 'xla'))
  assert found.outcome == 'right' and 'experts by hip on skewed' in found.said


def test_float32_that_is_wrong_is_a_fault(root):
  assert kernels(root, row('wrong', dtype='float32')).outcome == 'wrong'


def test_crash_is_that_of_the_comparison_that_had_begun(root):
  progress = (
    'checking experts xla a bfloat16\nchecking experts hip b bfloat16\noh\n'
  )
  crash = dict(code=-11, progress=progress)
  found = kernels(root, row('right', 'xla'), **crash)
  assert found.outcome == 'wrong'
  assert 'experts by hip on b bfloat16: the process was ended by SIG' in (
    found.said
  )
  device(root, platform='cuda')  # Where HIP only runs when it is named.
  assert kernels(root, row('right', 'xla'), **crash).outcome == 'right'


def test_command_that_fails_before_it_compares_is_no_kernel(root):
  found = kernels(root, code=1, progress='ImportError: no module\n')
  assert (
    found.outcome == 'failed' and 'check_experts ended with 1' in found.said
  )


@pytest.mark.parametrize(
  'changes, outcome, advice',
  [
    ({}, 'right', ''),
    ({'library': 'no libzaya_ops.so'}, 'wrong', 'make -C ops/native rocm'),
    ({'library': 'none', 'platform': 'cuda'}, 'right', ''),
    ({'platform': 'cpu'}, 'wrong', 'jax[rocm7-local]'),
    ({'platform': 'cpu', 'has_gpu': False}, 'right', ''),
  ],
)
def test_device_is_what_the_machine_has(root, changes, outcome, advice):
  device(root, **changes)
  found = verdicts.device(root, [ended('device')])
  assert found.outcome == outcome and advice in ' '.join(found.advice)


@pytest.mark.parametrize('code, said', [(None, 'hangs'), (1, 'docs/install')])
def test_jax_that_fails_or_hangs_is_told(root, code, said):
  found = verdicts.device(root, [ended('device', code, 'no device')])
  assert found.outcome == 'wrong' and said in ' '.join(found.advice)


def test_unfit_node_has_the_advice_of_its_faults(root):
  check = dict(
    name='gpu_ecc', found='GPU 4: off', wanted='on', advice='Reboot.'
  )
  checks = [{**check, 'outcome': 'fault'}, {**check, 'outcome': 'fit'}]
  content = {'fit': False, 'verdict': 'not fit: gpu_ecc', 'checks': checks}
  (root / 'preflight.json').write_text(json.dumps(content))
  found = verdicts.preflight(root, [ended('preflight', 3)])
  assert found.outcome == 'wrong'
  assert found.advice == ('gpu_ecc: GPU 4: off: Reboot.',)


def test_stage_that_was_cut_off_is_late_or_failed(root):
  late = verdicts.plan(root, [ended('plan', None)])
  assert late.outcome == 'late'
  failed = verdicts.machine(root, [ended('machine', 1, 'boom')])
  assert failed.outcome == 'failed' and 'boom' in failed.said
  assert failed.advice == ('See logs/machine.err.',)


def test_best_rates_and_what_is_missing_are_said(root):
  point = record.Point(
    case='triad', devices=1, size=1, work=6e9, seconds=2.0, low=2.0, high=2.0,
    samples=1, calls=1,
  )  # fmt: skip
  # An array that fits into a cache is no rate of the memory.
  cached = dataclasses.replace(point, size=0, work=1e12)
  part = file.section('GB/s', points=(cached, point), missing=('add x 1',))
  machine = file.Machine(chip='c', platform='gpu', devices=1, processes=1)
  known = dataclasses.replace(machine, sections={'memory': part})
  file.write(str(root / 'machine.json'), known)
  found = verdicts.machine(root, [ended('machine')])
  assert found.outcome == 'right' and 'memory 3 GB/s' in found.said
  assert 'did not suffice for 1 curves' in found.said
  assert verdicts.machine(root, [ended('machine', None)]).outcome == 'late'


def test_training_without_the_repository_is_not_checked(root):
  assert verdicts.training(root, []).outcome == 'not checked'


def test_losses_decide_on_training(root):
  for name, loss in (('device', 2.0), ('cpu', 2.001)):
    folder = root / 'training' / name
    folder.mkdir(parents=True)
    line = json.dumps({'step': 1, 'train/loss': loss})
    (folder / 'metrics.jsonl').write_text(line)
  both = [ended('training_device'), ended('training_cpu')]
  assert verdicts.training(root, both).outcome == 'right'
  (folder / 'metrics.jsonl').write_text(line.replace('2.001', '2.1'))
  wrong = verdicts.training(root, both)
  assert wrong.outcome == 'wrong' and '--ops.attention=xla' in wrong.advice[0]

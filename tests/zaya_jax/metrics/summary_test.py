# SPDX-License-Identifier: Apache-2.0
"""Paths of the last lines lead on from the folder in which the user is."""

import pytest

from zaya_jax import config
from zaya_jax.metrics import summary, window


def _closing(run_dir, checkpoint, **settings):
  return summary.closing(
    config.Config(num_steps=2, **settings),
    run_dir=run_dir,
    step=2,
    tokens=64,
    best=None,
    checkpoint=checkpoint,
  )


@pytest.mark.parametrize('step, word', [(1, 'stopped'), (2, 'done')])
def test_run_is_done_with_its_last_step(step, word):
  lines = summary.closing(
    config.Config(num_steps=2),
    run_dir='run',
    step=step,
    tokens=64,
    best=None,
    checkpoint=None,
  )
  assert lines[0].startswith(f'{word}: {step} of 2 steps')


@pytest.mark.parametrize('run_dir', ['run', '{here}/run'])
def test_page_and_checkpoint_are_named_alike(tmp_path, monkeypatch, run_dir):
  monkeypatch.chdir(tmp_path)
  newest = f'{tmp_path}/run/checkpoints/2'
  lines = _closing(run_dir.format(here=tmp_path), newest)
  assert '  page        run/report.html' in lines
  assert '  checkpoint  run/checkpoints/2' in lines


def test_what_lies_elsewhere_has_its_whole_path(tmp_path, monkeypatch):
  (tmp_path / 'here').mkdir()
  monkeypatch.chdir(tmp_path / 'here')
  lines = _closing(f'{tmp_path}/run', f'{tmp_path}/run/checkpoints/2')
  assert f'  page        {tmp_path}/run/report.html' in lines
  assert f'  checkpoint  {tmp_path}/run/checkpoints/2' in lines


def test_command_to_generate_samples_as_the_run_does():
  how = config.GenerateConfig(no_repeat=16)
  lines = _closing('run', 'run/checkpoints/2', prompt='def ', generate=how)
  (line,) = (line for line in lines if '--mode=generate' in line)
  assert line.endswith(" '--prompt=def ' --generate.no_repeat=16")
  (line,) = (x for x in _closing('run', 'run/checkpoints/2') if 'generate' in x)
  assert line.endswith(" '--prompt=The '")
  how = config.GenerateConfig(chat=True)
  lines = _closing('run', 'run/checkpoints/2', generate=how)
  (line,) = (line for line in lines if '--mode=generate' in line)
  assert line.endswith(" '--prompt=Hello!' --generate.chat")


def test_memory_is_told_where_devices_say_it(monkeypatch):
  named = lambda: [x for x in _closing('run', None) if 'memory' in x]
  assert named() == []
  monkeypatch.setattr(window, 'peak_bytes', lambda: 23_400_000_000)
  monkeypatch.setattr(window, 'limit_bytes', lambda: 63_800_000_000)
  assert named() == ['  memory      23.4 of 63.8 GB of a device at most']

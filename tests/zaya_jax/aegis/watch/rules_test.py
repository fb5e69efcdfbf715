# SPDX-License-Identifier: Apache-2.0
"""Files of rules: the shipped ones, and wrong ones."""

import logging
import re
import shutil

import pytest

from zaya_jax import config, main
from zaya_jax.aegis.watch import rules
from zaya_jax.checkpoint import seal
from zaya_jax.checkpoint.reading import aside
from zaya_jax.checkpoint.writing import failures, leftovers
from zaya_jax.config import fields
from zaya_jax.metrics import console
from zaya_jax.runtime import log

RULE = """
[[rule]]
name = 'mine'
source = 'kern'
pattern = 'a+b'
severity = 'warn'
scope = 'node'
"""


EXAMPLES = [
  line
  for rule in rules.load()
  if rule.source == 'kern'
  for line in rule.examples
]


@pytest.mark.parametrize(
  'change, line, why',
  [
    (("'a+b'", "'a+(b'"), 5, 'no regular expression'),
    (("pattern = 'a+b'\n", ''), 3, "'pattern' is missing"),
    (("severity = 'warn'", "severity = 'loud'"), 6, 'must be one of'),
    (('scope', 'scpe'), 7, "'scpe' is unknown; 'scope'?"),
    (("'mine'", "'done'"), 3, 'no line can mean this'),
    (("'kern'", "'trainer'\naction = 'replace_node'"), 4, 'never acts'),
    (
      ("'kern'\n", "'trainer'\n", "'warn'", "'critical'"),
      4,
      'never acts on a node',
    ),
    (("'kern'", "'trainer'\naction = 'stop'"), 4, 'never acts'),
    (("'kern'", "'trainer'\naction = 'restart'"), 4, 'never acts'),
    (("'node'", "'node'\naction = 'wait'"), 8, 'no line can tell'),
    (("'node'", "'job'\naction = 'replace_node'"), 7, 'only a rule about'),
    (("'node'", "'node'\ngrace_s = 5"), 8, 'go together'),
    (("'node'", "'node'\ncount = 5"), 2, 'go together'),
    (("'node'", "'node'\ndebounce_s = -1"), 8, 'at least 0'),
    (("'node'", "'node'\ncount = true"), 8, 'must be a number'),
    (("'node'", "'node'\nexamples = ['ba']"), 8, "misses 'ba'"),
    (("'node'", "'node'\nall_clear = ['ab']"), 8, "matches 'ab'"),
    (("'node'", "'node'\nexamples = 'ab'"), 8, 'a list of texts'),
    (("'warn'", "'warn"), 6, 'no TOML'),
    (("'mine'", '7'), 3, 'must be a text'),
    (('[[rule]]', '[rule]'), 2, 'rules are [[rule]]'),
    (('[[rule]]', 'limit = 3\n[[rule]]'), 2, "'limit' is unknown"),
    (("'node'\n", "'node'\n" + RULE), 10, 'is taken'),
  ],
)
def test_error_in_a_rule_file_names_its_line(tmp_path, change, line, why):
  path, text = tmp_path / 'mine.toml', RULE
  path.write_text(text)
  assert len(rules.load([path])) == 1
  for old, new in zip(change[::2], change[1::2], strict=True):
    text = text.replace(old, new, 1)
  path.write_text(text)
  with pytest.raises(fields.UsageError, match=re.escape(why)) as caught:
    rules.load([path])
  assert str(caught.value).startswith(f'{path}, line {line}: ')


def test_file_that_is_not_there_or_no_text(tmp_path):
  with pytest.raises(fields.UsageError, match='cannot be read'):
    rules.load([tmp_path / 'none.toml'])
  (tmp_path / 'bad.toml').write_bytes(b'\n\xff')
  with pytest.raises(fields.UsageError, match='line 2: it is not UTF-8'):
    rules.load([tmp_path])
  (tmp_path / 'bad.toml').unlink()
  with pytest.raises(fields.UsageError, match='have no rules'):
    rules.load([tmp_path])


def test_lines_that_are_excluded_do_not_match(tmp_path):
  path = tmp_path / 'mine.toml'
  path.write_text(RULE + "unless = 'but'\n")
  (found,) = rules.load([path])
  assert found.find('xaab')[0] == 'aab'
  assert found.find('aab, but') is None
  assert found.find('ba') is None


def test_action_is_that_of_the_severity_or_its_own(tmp_path):
  path = tmp_path / 'mine.toml'
  mine = RULE.replace('a+b', '^a+b')
  for severity, action in rules._ACTIONS.items():
    path.write_text(mine.replace("'warn'", f"'{severity}'"))
    assert rules.load([path])[0].action == action
  path.write_text(mine + "action = 'restart'\n")
  assert rules.load([path])[0].action == 'restart'


@pytest.mark.parametrize(
  'pattern, why',
  [
    ('.', 'which means no harm'),
    ('(?i)error', 'which means no harm'),  # Corrected, an option, a program.
    ('Link up', "acts on 'ionic 0000:81:00.0 enp129s0: Link up - 400 Gbps'"),
    ('GPU reset', 'succeeded'),  # Another rule is clear about it.
    (f'^({"|".join(map(re.escape, EXAMPLES[9:]))})$', 'other rules'),
  ],
)
def test_rule_that_would_condemn_everything_is_refused(tmp_path, pattern, why):
  path = tmp_path / 'mine.toml'
  path.write_text(RULE.replace('a+b', pattern))
  assert len(rules.load([path])) == 1  # It only warns.
  path.write_text(RULE.replace('a+b', pattern).replace("'warn'", "'critical'"))
  with pytest.raises(fields.UsageError, match=re.escape(why)) as caught:
    rules.load([path])
  start = f"{path}, line 3: the rule 'mine' "
  assert str(caught.value).startswith(start)


def test_site_may_say_that_a_line_does_mean_harm(tmp_path):
  path = tmp_path / 'mine.toml'
  line = 'ionic 0000:81:00.0 enp129s0: Link up - 400 Gbps'
  text = RULE.replace('a+b', 'Link up - 400').replace("'warn'", "'critical'")
  path.write_text(text + f"examples = ['{line}']\n")
  assert rules.load([path])[0].find(line)


@pytest.mark.parametrize(
  'line',
  [
    'amdgpu 1: x[4242]: segfault at 0 ip 0000000000401000 sp 00007ffd00000000 '
    'error 4 in GPU reset begin[401000+1000]',
    'XFS (x): [7]: segfault at 0 ip 0 sp 0 error 4 in Corruption[1+1]',
    'ionic 1: x[7]: segfault at 0 ip 0 sp 0 error 4 in Fatal error[1+1]',
    'traps: amdgpu 1: x[7] general protection fault ip:0 sp:0 error:0 in '
    'Saved bad pages 9 reaches threshold[1+1]',
    'amdgpu: [7]: segfault at 0 error 4 in Saved bad pages 1 reaches threshold',
    'amdgpu 1: GPU is lost',
  ],
)
def test_name_of_a_program_is_no_fault_of_a_node(line):
  assert not [rule.name for rule in rules.load() if rule.find(line)]


@pytest.fixture
def said(tmp_path, monkeypatch, caplog, capsys):
  """By kind, what training prints, as log.txt and stderr have it."""
  monkeypatch.setattr(logging, '_levelToName', {logging.WARNING: 'warning'})
  caplog.handler.setFormatter(logging.Formatter(log.FORMAT))
  root = tmp_path / 'runs' / 'a' / 'checkpoints'
  (root / '40').mkdir(parents=True)
  free = shutil.disk_usage(root)._replace(free=1)
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: free)
  failed = failures.Failures(str(root), config.CheckpointConfig())
  failed.add(40, leftovers.obstacle(str(root), 9))
  logging.warning(
    '%s', seal.BrokenError(root / '40', 'hash', 'd/7 has changed')
  )
  with pytest.raises(seal.BrokenError) as unsealed:
    seal.verify(str(root / '40'))
  logging.warning('%s', unsealed.value)
  aside.move(str(root / '40'), 'hash')
  save, *seals = caplog.text.splitlines()
  full = OSError(28, 'No space left on device')
  with console.Console(tmp_path / 'log.txt') as shown:
    with shown.trying('metrics.jsonl'):
      raise full
  gone = config.Config(run_dir=str(tmp_path / 'runs' / 'a'))
  full.filename = gone.run_dir
  main._fail(main._disk_full(gone, full), 3)
  disk = [*capsys.readouterr()]
  found = {'save_failed': [save], 'seal_mismatch': seals, 'disk_full': disk}
  return {
    kind: {line.strip().replace(str(tmp_path), '') for line in lines}
    for kind, lines in found.items()
  }


def test_examples_are_what_training_prints(said):
  shipped = {rule.name: rule for rule in rules.load()}
  assert {kind: {*shipped[kind].examples} for kind in said} == said


def test_shipped_rules_are_silent_about_machines_that_are_well():
  ordinary = rules.ordinary()
  assert set(ordinary) == {'kern', 'journal', 'metrics'}
  assert len(ordinary['kern']) > 40
  for rule in rules.load():
    for line in ordinary.get(rule.source, ()):
      assert not rule.find(line), rule.name

# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus: rules and a dashboard of metrics that exist."""

import json
import re
import shutil
import subprocess

import prometheus_client
import pytest
import yaml

from tests.support import documents
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import metrics

FOLDER = documents.ROOT / 'deploy' / 'prometheus'
PAGE = documents.ROOT / 'docs' / 'supervision.md'
needs_promtool = pytest.mark.skipif(
  not shutil.which('promtool'), reason='promtool is in prometheus of Debian'
)


def alerts():
  """The alerting rules, by name."""
  (group,) = yaml.safe_load((FOLDER / 'alerts.yml').read_text())['groups']
  return {rule['alert']: rule for rule in group['rules']}


def board():
  return json.loads((FOLDER / 'dashboard.json').read_text())


def board_queries():
  """The queries of the dashboard, with its variables filled in."""
  text = [
    target['expr'] for panel in board()['panels'] for target in panel['targets']
  ]
  for name, value in (
    ('$instance', '.*'),
    ('$__rate_interval', '5m'),
    ('$__range', '1h'),
  ):
    text = [query.replace(name, value) for query in text]
  return text


@pytest.fixture(scope='module')
def exported():
  """What a supervisor exports, by the names that queries use."""
  registry = metrics.Metrics(lambda: state_lib.start(('a',))).registry
  lines = prometheus_client.generate_latest(registry).decode().splitlines()
  return {re.split(r'[{ ]', line)[0] for line in lines if line[0] != '#'}


def missing(query, exported):
  """The metrics of a query that no supervisor exports."""
  return set(re.findall(r'\bzaya_jax_\w+', query)) - exported


def test_every_metric_of_rules_and_dashboard_is_exported(exported):
  queries = [rule['expr'] for rule in alerts().values()] + board_queries()
  named = set(re.findall(r'\bzaya_jax_\w+', ' '.join(queries)))
  assert len(named) > 10
  assert [query for query in queries if missing(query, exported)] == []


def test_misspelt_metric_is_seen(exported):
  query = 'zaya_jax_step_age_second > 5 and zaya_jax_running == 1'
  assert missing(query, exported) == {'zaya_jax_step_age_second'}


def test_every_alert_is_explained_where_its_runbook_leads():
  section = PAGE.read_text().partition('\n## Alerts\n')[2].partition('\n## ')[0]
  for name, rule in alerts().items():
    assert f'`{name}`' in section, name
    assert rule['annotations']['runbook'] == 'docs/supervision.md#alerts'
    assert rule['labels']['severity'] in ('page', 'ticket')


def test_every_alert_has_a_test_where_it_fires_and_where_it_is_silent():
  tests = yaml.safe_load((FOLDER / 'alerts_test.yml').read_text())['tests']
  fires = {name: set() for name in alerts()}
  for test in tests:
    for case in test.get('alert_rule_test', ()):
      fires[case['alertname']].add(bool(case.get('exp_alerts')))
  assert {k: v for k, v in fires.items() if v != {True, False}} == {}


def test_rules_ask_for_the_job_of_the_example():
  config = yaml.safe_load((FOLDER / 'prometheus.yml').read_text())
  assert config['rule_files'] == ['alerts.yml']
  (job,) = config['scrape_configs']
  assert f'job="{job["job_name"]}"' in alerts()['ZayaDown']['expr']


def test_panels_have_their_own_places():
  taken = set()
  for panel in board()['panels']:
    place = panel['gridPos']
    cells = {
      (x, y)
      for x in range(place['x'], place['x'] + place['w'])
      for y in range(place['y'], place['y'] + place['h'])
    }
    assert not cells & taken and max(x for x, _ in cells) < 24
    taken |= cells
  ids = [panel['id'] for panel in board()['panels']]
  assert len(set(ids)) == len(ids)


def promtool(*words):
  return subprocess.run(
    ['promtool', *map(str, words)],
    cwd=FOLDER,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )


@needs_promtool
@pytest.mark.parametrize(
  'words',
  [
    ('check', 'config', 'prometheus.yml'),
    ('check', 'rules', 'alerts.yml'),
    ('test', 'rules', 'alerts_test.yml'),
  ],
)
def test_promtool_accepts(words):
  done = promtool(*words)
  assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_queries_of_the_dashboard_are_understood(tmp_path):
  rules = [
    {'record': f'query_{i}', 'expr': query}
    for i, query in enumerate(board_queries())
  ]
  path = tmp_path / 'rules.yml'
  path.write_text(json.dumps({'groups': [{'name': 'all', 'rules': rules}]}))
  done = promtool('check', 'rules', path)
  assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alert_that_fires_too_late_is_seen(tmp_path):
  text = (FOLDER / 'alerts.yml').read_text()
  wrong = text.replace('for: 3m', 'for: 30m', 1)
  assert wrong != text
  (tmp_path / 'alerts.yml').write_text(wrong)
  shutil.copy(FOLDER / 'alerts_test.yml', tmp_path)
  done = promtool('test', 'rules', tmp_path / 'alerts_test.yml')
  assert done.returncode == 1 and 'ZayaDown' in done.stdout + done.stderr

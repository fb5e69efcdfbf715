# SPDX-License-Identifier: Apache-2.0
"""What a scrape of an unsupervised run sees."""

import math

from zaya_jax.metrics.trackers import prometheus


def _value(tracker, name):
  return tracker.registry.get_sample_value(name)


def test_gauges_are_the_newest_row():
  tracker = prometheus.Tracker()
  assert _value(tracker, 'zaya_jax_step') == 0
  tracker.scalars({'train/loss': 2.5, 'val/bpb/a b': 1.0}, 5)
  tracker.scalars({'train/loss': math.nan}, 6)
  tracker.text('sample', 'words', 6)
  assert _value(tracker, 'zaya_jax_step') == 6
  assert math.isnan(_value(tracker, 'zaya_jax_train_loss'))
  assert _value(tracker, 'zaya_jax_val_bpb_a_b') == 1.0


def test_age_is_that_of_the_step_not_of_the_row(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(prometheus.time, 'monotonic', lambda: now[0])
  tracker = prometheus.Tracker()
  now[0] = 110.0
  tracker.scalars({}, 1)
  now[0] = 115.0
  tracker.scalars({}, 1)  # An evaluation of the same step.
  assert _value(tracker, 'zaya_jax_step_age_seconds') == 5.0

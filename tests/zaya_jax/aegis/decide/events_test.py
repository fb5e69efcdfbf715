# SPDX-License-Identifier: Apache-2.0
"""The words of events and actions."""

import dataclasses
import typing

import pytest

from zaya_jax.aegis.decide import events


def test_kinds_are_no_actions_and_named_once():
  actions = typing.get_args(events.ActionKind)
  assert set(events.NODE_ACTIONS) < set(actions)
  assert not set(events.KINDS) & set(actions)
  assert len(set(events.KINDS)) == len(events.KINDS)


def test_events_cannot_be_changed():
  event = events.Event(time_s=1.0, kind='done')
  with pytest.raises(dataclasses.FrozenInstanceError):
    event.kind = 'exit'

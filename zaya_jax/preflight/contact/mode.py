# SPDX-License-Identifier: Apache-2.0
"""--mode=contact: the first hour on a machine; `make first-contact`.

Stages in order, each as commands with a limit. What is done stands in
contact.json, so that the same command goes on; page and archive are written
whatever happens.
"""

import dataclasses
import datetime
import json
import pathlib
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.preflight.contact import child, page, stages, verdicts
from zaya_jax.runtime import durable

_LEAST_S = 5.0  # Less is no time for a command.
# The worst first.
_CODES = {
  'wrong': exit_codes.UNUSABLE,
  'failed': exit_codes.INTERNAL,
  'late': exit_codes.STOPPED,
}


def main(config: config_lib.Config) -> int:
  """Runs all stages into --run_dir.

  Returns:
    The exit code: 0 if all is right, 3 if the machine or a kernel is not, 1 if
    a command failed, 75 if the time was over: the same command goes on.

  Raises:
    UsageError: if --run_dir holds the first contact of another machine.
  """
  contact = Contact(config)
  try:
    contact.run()
  except config_lib.UsageError:  # The page is another machine's.
    raise
  except BaseException:
    contact.finish()
    raise
  contact.finish()
  outcomes = [entry['outcome'] for entry in contact.entries.values()]
  return next(
    (code for name, code in _CODES.items() if name in outcomes),
    exit_codes.DONE,
  )


class Contact:
  """A first contact.

  Args:
    config: of the command.

  Attributes:
    entries: what is known of each stage, by name.
  """

  def __init__(self, config: config_lib.Config):
    self._config, self._root = config, pathlib.Path(config.run_dir)
    self._began = time.monotonic()
    self._state = self._root / 'contact.json'
    known = json.loads(self._state.read_text()) if self._state.exists() else {}
    self._device: dict[str, Any] = known.get('device', {})
    stages_known = known.get('stages', {}) if config.resume else {}
    self.entries: dict[str, dict[str, Any]] = stages_known
    (self._root / 'logs').mkdir(parents=True, exist_ok=True)
    # Of what is planned and measured.
    model = dataclasses.replace(config, mode='train', run_dir='', output='')
    text = dataclasses.replace(
      model, contact=config_lib.ContactConfig()
    ).to_flagfile()
    durable.replace(self._root / 'flags', text.encode())

  def run(self) -> None:
    """Runs what is not done."""
    for stage in stages.before(self._config, self._root):
      # Which device it is must be seen each time.
      if not self._run(stage, again=stage.name == 'device'):
        return
    self._compare_device()
    later = stages.after(self._config, self._root, self._device)
    for number, stage in enumerate(later):
      if not self._run(stage, self._share(later[number:])):
        return

  def finish(self) -> None:
    """Writes page and archive, and says where they are."""
    device = self._device
    title = f'{device["devices"]} x {device["chip"]}' if device else 'no device'
    found = [{'name': name, **entry} for name, entry in self.entries.items()]
    page.write(self._root, f'{title} on {platform.node()}', found)
    for entry in found:
      for line in entry['advice']:
        print(f'{entry["name"]}: {line}', flush=True)
    _say(f'send {self._root / page.ARCHIVE}; it has {page.PAGE}, to look at')

  def _is_done(self, stage: stages.Stage) -> bool:
    return self.entries.get(stage.name, {}).get('outcome') == 'right'

  def _share(self, left: Sequence[stages.Stage]) -> float:
    """Of the time that is left, for the first; what is done needs none."""
    shares, rest = [], 1.0
    for stage in left:
      shares.append(0.0 if self._is_done(stage) else rest * stage.share)
      rest *= 1 - stage.share
    return shares[0] / (sum(shares) or 1.0)

  def _run(
    self, stage: stages.Stage, share: float = 1.0, again: bool = False
  ) -> bool:
    """Runs a stage; whether the next one makes sense."""
    known = self.entries.get(stage.name)
    if known and self._is_done(stage) and not again:
      _say(f'{stage.name}: done before: {known["said"]}')
      return True
    _say(f'{stage.name}: {stage.about} ...')
    began = time.monotonic()
    left = 60 * self._config.contact.minutes - (began - self._began)
    until = began + share * left
    done = known['done'] if known and not again else ()
    ended, over = self._commands(stage.commands, done, until)
    verdict = verdicts.Verdict(outcome='late', said='no time was left')
    if ended or not over:
      verdict = stage.judge(self._root, ended)
    # Time that some commands did not need is that of others.
    while (again := verdict.unfinished) and not over:
      more, over = self._commands(
        [one for one in stage.commands if one.name in again], (), until
      )
      ended = [*({one.name: one for one in [*ended, *more]}.values())]
      verdict = stage.judge(self._root, ended)
    verdict = _in_time(verdict, over)
    seconds = time.monotonic() - began
    finished = [
      one.name
      for one in ended
      if one.code == exit_codes.DONE and one.name not in verdict.unfinished
    ]
    self._keep(stage.name, verdict, seconds, finished)
    if stage.name == 'device':  # Without it nothing can follow.
      return verdict.outcome == 'right'
    stops = stage.stops and verdict.outcome == 'wrong'
    return not stops or self._config.contact.go_on

  def _commands(
    self,
    commands: Sequence[stages.Command],
    done: Sequence[str],
    until: float,
  ) -> tuple[list[child.Ended], bool]:
    """How each ended, and whether the time was over before the last."""
    ended: list[child.Ended] = []
    for command in commands:
      if command.name in done:
        ended.append(child.Ended(name=command.name, code=0, seconds=0.0))
        continue
      left = until - time.monotonic()
      if left < _LEAST_S:
        return ended, True
      ended.append(self._command(command, left))
      if ended[-1].code not in (exit_codes.DONE, exit_codes.UNUSABLE):
        _say(f'{ended[-1].name} {ended[-1].words}: {ended[-1].last}')
    return ended, False

  def _command(self, command: stages.Command, left: float) -> child.Ended:
    return child.run(
      command.name,
      command.words,
      self._root / 'logs',
      min(command.limit_s, left),
      environment=command.environment,
      tell=_say,
    )

  def _keep(self, name, verdict, seconds, done) -> None:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    self.entries[name] = {
      **dataclasses.asdict(verdict),
      'done': done,
      'seconds': round(seconds, 1),
      'date': now.isoformat(),
    }
    _say(f'{name}: {verdict.outcome}: {verdict.said} ({seconds:.0f} s)')
    self._write()

  def _write(self) -> None:
    content = {'device': self._device, 'stages': self.entries}
    text = json.dumps(content, indent=1)
    durable.replace(self._state, f'{text}\n'.encode())

  def _compare_device(self) -> None:
    """Whether what was done before was done on this device."""
    found, known = verdicts.read_device(self._root), self._device
    for what in ('chip', 'devices', 'versions'):
      if known and known[what] != found[what]:
        raise config_lib.UsageError(
          f'--run_dir={self._root} holds the first contact of {known[what]} '
          f'and this is {found[what]} ({what}); name another folder.'
        )
    self._device = found
    self._write()


def _in_time(verdict: verdicts.Verdict, over: bool) -> verdicts.Verdict:
  """The verdict; what is right so far is late if there was no time for all."""
  if over and verdict.outcome == 'right':
    said = f'{verdict.said}; no time was left for the rest'
    verdict = dataclasses.replace(verdict, outcome='late', said=said)
  if verdict.outcome != 'late':
    return verdict
  advice = (*verdict.advice, 'The same command goes on where it was.')
  return dataclasses.replace(verdict, advice=advice)


def _say(words: str) -> None:
  print(f'first contact: {words}', file=sys.stderr, flush=True)

# SPDX-License-Identifier: Apache-2.0
"""What people, and the programs that wake them, are told of a run."""

from collections.abc import Callable

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import address
from zaya_jax.aegis.watch import rules

_STUCK_S = 120.0  # Longer than any wait between two looks.


class Board:
  """Passes incidents on to metrics and to a webhook, as --aegis.* say.

  Args:
    config: of the run.
    state: returns the present state.
    say: prints a line for people.

  Attributes:
    registry: of prometheus_client; None without --aegis.port.

  Raises:
    UsageError: if --aegis.notify is wrong.
  """

  def __init__(
    self,
    config: config_lib.Config,
    state: Callable[[], state_lib.State],
    say: Callable[[str], None],
  ):
    aegis, url = config.aegis, address.read(config.aegis.notify)
    self._metrics = self._webhook = self.registry = None
    if aegis.port:
      from zaya_jax.aegis.notify import metrics  # A fifth of a second.

      names = [rule.name for rule in rules.load(aegis.rules)]
      self._metrics = metrics.Metrics(state, (*events.KINDS, *names))
      self.registry = self._metrics.registry
    if url:
      from zaya_jax.aegis.notify import webhook  # A tenth of a second.

      self._webhook = webhook.Webhook(url, config.run_dir, say)

  def seen(self, event: events.Event, action: events.Action) -> None:
    """Takes a decision; never waits."""
    for part in (self._metrics, self._webhook):
      if part:
        part.take(event, action)

  def finished(self, step: int) -> None:
    """Takes the last step that all ranks have finished; 0 for none yet."""
    if self._metrics:
      self._metrics.finished(step)

  def stuck(self) -> str:
    """Why the supervisor itself, which others ask, does nothing; '' if it does.

    The port is answered by a thread, which would not notice.
    """
    age_s = self._metrics.look_age_s if self._metrics else 0.0
    if age_s < _STUCK_S:
      return ''
    return f'the supervisor itself has done nothing for {age_s:.0f} s'

  def close(self) -> None:
    """Waits some seconds for the last notice."""
    if self._webhook:
      self._webhook.close()

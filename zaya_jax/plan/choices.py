# SPDX-License-Identifier: Apache-2.0
"""--plan.search, .parameters, .hours: finds, shows, and compiles the best."""

from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.plan import hours, search, sizes
from zaya_jax.plan.compile import rocm
from zaya_jax.plan.show import choices as show
from zaya_jax.plan.show import hours as hours_show
from zaya_jax.runtime import rows

QUESTIONS = ('hours', 'search', 'parameters')  # Of --plan.*.
_HINT = (
  'The best are not compiled; --plan.compile=rocm compiles three for MI300X, '
  'minutes each.'
)


def make(config: config_lib.Config) -> dict[str, Any]:
  """What was found, after it was printed.

  Raises:
    UsageError: if nothing fits, two are asked for, or a picture is.
    CompileError: if one of the best does not compile.
  """
  if '.svg' in config.output:
    raise config_lib.UsageError(
      f'--output={config.output}: there is a picture of a single plan only; '
      'name a .json file.'
    )
  asked = [n for n in QUESTIONS if getattr(config.plan, n)]
  if len(asked) > 1:
    raise config_lib.UsageError(
      f'--plan.{asked[0]} and --plan.{asked[1]} are two questions; find the '
      'size first, then the mesh of the one you take.'
    )
  if config.plan.hours:
    found = hours.find(config)
    hours_show.show(found, rows.is_json(config.json))
    return found
  if config.plan.parameters:
    found = {**sizes.find(config), 'grid': sizes.GRID}
    show.show_sizes(found, rows.is_json(config.json))
    return found
  found = {**search.find(config), 'hint': _HINT}
  if config.plan.compile == 'rocm':
    for row in found['rows'][: search.COMPILED]:
      row['compiled'] = rocm.compile_step(search.chosen(config, row))
  show.show_search(found, rows.is_json(config.json))
  return found

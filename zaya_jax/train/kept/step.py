# SPDX-License-Identifier: Apache-2.0
"""A jitted training step that is traced and lowered once for many starts.

Tracing the step and lowering its kernels takes longer than to load the program
that XLA has made of it, which JAX keeps. So its StableHLO is kept too, as
`jax.export` writes it, and a start whose step depends on the same facts calls
that: XLA then finds the same program in JAX's cache.
"""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax import export as export_lib

from ops import dispatch, native
from zaya_jax import config as config_lib
from zaya_jax.train.kept import facts, files

# Of whoever reads the program: it runs where it was made, by the same versions.
_ANY_CALL = (export_lib.DisabledSafetyCheck.custom_call('ALL'),)


def folder() -> str:
  """Where JAX keeps compiled programs; '': nothing is to be kept.

  Only the command line keeps steps. Another program may have changed functions
  of this one in memory, which the digest of the sources does not show.
  """
  main = getattr(sys.modules['__main__'], '__spec__', None)
  cache = jax.config.values['jax_compilation_cache_dir'] or ''
  if not main or main.name != 'zaya_jax.main' or '://' in cache:
    return ''
  if not importlib.util.find_spec('flatbuffers'):  # jax.export writes by it.
    return ''
  enabled = jax.config.values['jax_enable_compilation_cache']
  return cache if enabled else ''


class Step:
  """As `jax.jit` of a step that donates its state, of which it has `lower`.

  Args:
    step: (state, batch) -> (state, measured), by name.
    options: XLA's.
    config: of the run, in which nothing is left to decide.
    place: of `folder`.
    note: told what people should know.
  """

  def __init__(
    self,
    step: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
    options: dict[str, str | int],
    config: config_lib.Config,
    place: str,
    note: Callable[[str], None],
  ):
    self._step, self._options = step, options
    self._config, self._place, self._note = config, place, note

  def lower(self, state: Any, batch: Any) -> jax.stages.Lowered:
    """The step lowered, now or at a start before, on the mesh that is set."""
    digest = facts.digest(self._config, (state, batch))
    file = files.path(self._place, digest)
    found = digest and (self._read(file) or self._make(file, state, batch))
    if not found:
      return self._jit(self._step).lower(state, batch)
    about, program = found
    exported = export_lib.deserialize(bytearray(program))
    tree = jax.tree.structure((state, dict.fromkeys(about['measured'], 0)))

    def train_step(state, batch):
      made = exported.call(*jax.tree.leaves((state, batch)))
      return jax.tree.unflatten(tree, made)

    return self._jit(train_step).lower(state, batch)

  def _jit(self, step):
    return jax.jit(step, donate_argnums=0, compiler_options=self._options)

  def _read(self, file):
    """What is kept, if it can be used."""
    try:
      found = files.read(file)
    except (files.DamagedError, OSError) as error:
      self._note(f'the step is lowered again: {error}')
      return None
    if found:
      about, _ = found
      native.register(about['native'])
      dispatch.remember(map(_choice, about['choices']))
      self._note('the step was lowered before')
    return found

  def _make(self, file, state, batch):
    """Lowers the step and keeps it, if that is possible; None: it is not."""
    leaves, tree = jax.tree.flatten((state, batch))
    names: list[str] = []

    def flat(*leaves):
      new, measured = self._step(*jax.tree.unflatten(tree, leaves))
      names[:] = sorted(measured)
      return *jax.tree.leaves(new), *(measured[name] for name in names)

    export = export_lib.export(
      jax.jit(flat),
      platforms=(dispatch.platform(),),
      disabled_checks=_ANY_CALL,
    )
    try:
      program = bytes(export(*leaves).serialize())
    except NotImplementedError as error:  # It calls Python while it runs.
      self._note(f'the step cannot be kept: {error}')
      return None
    about = {
      'measured': names,
      'choices': [dataclasses.astuple(c) for c in dispatch.choices()],
      'native': native.called(),
    }
    try:
      files.write(file, about, program)
      files.prune(self._place)
    except OSError as error:
      self._note(f'the step cannot be kept: {error}')
    return about, program


def _choice(row) -> dispatch.Choice:
  op, engine, passed_over = row
  return dispatch.Choice(op, engine, tuple(map(tuple, passed_over)))

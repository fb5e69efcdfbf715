# SPDX-License-Identifier: Apache-2.0
"""--log.profile: the profiler of JAX around some steps.

It traces what process 0 and its devices do. `zaya_jax/report/kernels.py` reads
the trace.
"""

import pathlib
import shutil
from typing import Any

import jax

from zaya_jax import config as config_lib
from zaya_jax.metrics import reporter
from zaya_jax.runtime import processes, run_files


class Profile:
  """Traces the steps of --log.profile.

  Args:
    config: of the run.
    report: told where the trace is.
  """

  def __init__(self, config: config_lib.Config, report: reporter.Reporter):
    self._run_dir, self._report = config.run_dir, report
    here = processes.process() == 0
    self._steps = config.log.profiled if here else range(0)
    self._traces = False

  def begins(self, step: int) -> bool:
    """Whether the trace begins after this step."""
    return step + 1 in self._steps[:1]

  def ends(self, step: int, last: bool) -> bool:
    """Whether the trace ends after this step, or with the run."""
    return self._traces and (last or step in self._steps[-1:])

  def begin(self, state: Any) -> None:
    """Begins once the steps so far are done; a trace of before goes."""
    jax.block_until_ready(state)
    folder = self._folder()
    shutil.rmtree(folder, ignore_errors=True)
    with self._report.trying(f'{run_files.PROFILE}/'):
      folder.mkdir(parents=True)
      jax.profiler.start_trace(str(folder))
      self._traces = True

  def end(self, state: Any) -> None:
    """Writes the trace once the traced steps are done."""
    jax.block_until_ready(state)
    self._traces = False
    with self._report.trying(f'{run_files.PROFILE}/'):
      jax.profiler.stop_trace()
      self._report.note(
        f'traced steps {self._steps[0]} to {self._steps[-1]} into '
        f'{self._folder()}; --mode=report --run_dir={self._run_dir} says what '
        'took how long'
      )

  def _folder(self) -> pathlib.Path:
    return run_files.profile(self._run_dir, self._steps)

# SPDX-License-Identifier: Apache-2.0
"""What differs between two checkpoints, to the bit."""

import numpy as np


def test_difference_is_exact_and_drift_is_told_apart(
  run, act, make_manager, make_state, tmp_path
):
  _, lines = act('diff', run / '4', other=str(run / '4'))
  assert lines[-1]['different_arrays'] == 0 and len(lines) == 1
  _, lines = act('diff', run / '4', other=str(run / '3'))
  found = {line['array']: line for line in lines if 'array' in line}
  a, b = (np.asarray(make_state(s).params['blocks']['w']) for s in (4, 3))
  w = found['params/blocks/w']
  assert w['different'] == np.sum(a != b) and w['elements'] == a.size
  drift = a.astype(np.float64) - b
  np.testing.assert_allclose(w['largest_drift'], np.max(np.abs(drift)))
  relative = np.linalg.norm(drift) / np.linalg.norm(a.astype(np.float64))
  np.testing.assert_allclose(w['relative_drift'], relative, rtol=1e-6)
  assert 'params/scale' not in found  # The same in both.
  settings = {x['setting']: x for x in lines if 'setting' in x}
  assert settings['optim.lr'] == {
    'setting': 'optim.lr', 'first': 4, 'second': 3,
  }  # fmt: skip
  assert lines[-1]['different_arrays'] == len(found)


def test_minus_zero_differs_without_drift(
  run, act, make_manager, make_state, tmp_path
):
  state = make_state(4)
  state.params['scale'] = state.params['scale'] * 0
  with make_manager(keep=9) as checkpoints:
    checkpoints.save(5, state, data_index=4, meta={})
    state.params['scale'] = -state.params['scale']
    checkpoints.save(6, state, data_index=4, meta={})
  _, lines = act('diff', run / '5', other=str(run / '6'))
  [line] = [line for line in lines if 'array' in line]
  assert (line['array'], line['different']) == ('params/scale', 3)
  assert line['largest_drift'] == 0.0

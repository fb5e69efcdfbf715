# SPDX-License-Identifier: Apache-2.0
"""Time by kind of kernel: of made-up spans, and of a trace of this CPU."""

import json
import types

import jax
import jax.numpy as jnp
import pytest

from tests.support import pages
from tests.support import run_files as run_files_of_tests
from zaya_jax.report import kernels, overview, page
from zaya_jax.runtime import run_files


@pytest.mark.parametrize(
  'name, kind',
  [
    ('attention_of_keys_mosaic_gpu_kernel', 'attention'),
    ('cca_forward', 'CCA'),
    ('experts_d_weights_mosaic_gpu_kernel', 'experts'),
    ('cross_entropy_exponentials_mosaic_gpu_kernel', 'cross-entropy'),
    ('symmetric_matmul_mosaic_gpu_kernel', 'Muon'),
    ('ncclDevKernel_AllReduce_Sum_f32_RING_LL', 'messages between devices'),
    ('all-gather.3', 'messages between devices'),
    ('memcpy32_post', 'copies'),
    ('nvjet_sm90_tst_256x128_64x4_1x2_h_badd', 'products of matrices'),
    ('Cijk_Alik_Bljk_BBS_BH', 'products of matrices'),
    ('dot.14', 'products of matrices'),
    ('sort.2', 'sorts, gathers, scatters'),
    ('loop_convert_select_fusion', 'elementwise and reductions'),
    ('while.5', 'loops and branches'),
    ('strange', 'other'),
  ],
)  # fmt: skip
def test_kernels_have_the_kind_that_people_know(name, kind):
  assert kernels.kind(name) == kind


def test_a_summary_is_of_a_step_and_a_device():
  span = kernels.Span
  one = [span('dot.1', 0, 2e9), span('copy', 2e9, 3e9), span('dot.2', 5e9, 6e9)]
  two = [span('dot.1', 1e9, 5e9)]
  found = kernels.summary([one, two, []], steps=2)
  assert (found['devices'], found['steps']) == (2, 2)
  assert found['span_s'] == (6 + 4) / 4
  assert found['kinds'] == [
    ['products of matrices', 7 / 4, 7 / 8, 3 / 4],
    ['copies', 1 / 4, 1 / 8, 1 / 4],
  ]
  assert [row[:2] for row in found['longest']] == [
    ['dot.1', 6 / 4],
    ['copy', 1 / 4],
    ['dot.2', 1 / 4],
  ]


def _event(name, start, length, operation=True):
  stats = [('hlo_op', name)] if operation else []
  return types.SimpleNamespace(
    name=name, start_ns=start, duration_ns=length, stats=stats
  )


def test_an_operation_of_a_cpu_counts_without_those_inside_it():
  events = [
    _event('while', 0, 10),
    _event('call', 1, 5),
    _event('dot', 2, 3),
    _event('add', 7, 2),
    _event('thread', 0, 99, operation=False),
    _event('copy', 10, 4),
  ]
  taken = {s.name: s.end - s.start for s in kernels._alone(events)}
  assert taken == {'while': 3, 'call': 2, 'dot': 3, 'add': 2, 'copy': 4}


def test_a_trace_is_summed_up_once(tmp_path):
  folder = run_files.profile(str(tmp_path), range(3, 5))
  work = jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((64, 64))).compile()
  work(jnp.ones((64, 64))).block_until_ready()
  with jax.profiler.trace(str(folder)):
    for _ in range(2):
      work(jnp.ones((64, 64))).block_until_ready()
  kernels.summarise(str(tmp_path))
  (found,) = kernels.read(str(tmp_path))
  assert (found['first'], found['last'], found['steps']) == (3, 4, 2)
  assert sum(share for _, _, share, _ in found['kinds']) == pytest.approx(1)
  place = folder / run_files.SUMMARY
  place.write_text(json.dumps(found | {'steps': 7}))
  kernels.summarise(str(tmp_path))
  assert kernels.read(str(tmp_path))[0]['steps'] == 7


def test_the_page_shows_them(tmp_path):
  run_files_of_tests.write(tmp_path)
  assert 'kernels' not in pages.figures(_page(tmp_path))
  folder = run_files.profile(str(tmp_path), range(3, 5))
  folder.mkdir(parents=True)
  found = kernels.summary([[kernels.Span('dot.1', 0, 3e6)]], steps=2)
  place = folder / run_files.SUMMARY
  place.write_text(json.dumps(found | {'first': 3, 'last': 4}))
  kinds, longest = pages.figures(_page(tmp_path))['kernels']['choices']
  assert kinds['label'] == 'steps 3 to 4, by kind'
  assert kinds['rows'] == [['products of matrices', '1.500', '100.0%', '0.5']]
  assert longest['rows'][0][0] == 'dot.1'
  place.write_text('{')
  text = _page(tmp_path)
  assert 'A summary of traced steps cannot be read' in text
  assert 'kernels' not in pages.figures(text)


def _page(run):
  return page.render(overview.make(overview.read([str(run)])))


def test_a_run_without_traces_needs_no_jax(tmp_path, monkeypatch):
  monkeypatch.setattr(kernels, 'spans', None)
  kernels.summarise(str(tmp_path))
  assert kernels.read(str(tmp_path)) == []

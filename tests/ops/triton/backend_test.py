# SPDX-License-Identifier: Apache-2.0
"""A jax without a Triton backend: what runs instead, on ROCm and on CUDA."""

import json
import subprocess
import sys

from ops import native
from ops.hopper import warp_groups
from tests.support.ops import defaults

WITHOUT = """
import json, sys
sys.modules['jax.experimental.pallas.triton'] = None
import jax, numpy as np
from ops import dispatch, native, registry
from ops.hopper import warp_groups
from tests.support.ops import defaults, shapes

def value_and_gradients(run, args, kwargs):
  out, vjp = jax.vjp(lambda *args: run(*args, **kwargs), *args)
  return jax.tree.leaves((out, vjp(out)))

norm = registry.operation('residual_rms_norm')
case = next(case for case in norm.cases if not case.zaya)
args, kwargs = case.arguments(np.random.default_rng(0), np.dtype('float32'))
found = []
for engine in ('hip', 'xla'):
  with dispatch.use(residual_rms_norm=engine):
    found.append(value_and_gradients(norm.run, args, kwargs))
off = [float(np.abs(a - b).max(initial=0)) for a, b in zip(*found)]

native.unavailable = lambda kernel: None
warp_groups.unavailable = lambda: None
router = registry.operation('router')
args, kwargs = shapes.of(next(case for case in router.cases if case.zaya))
told = [engine.unsupported(*args, **kwargs) for engine in router.engines][0]
print(json.dumps({'engines': defaults.engines(), 'off': off, 'told': told}))
"""
ROCM = {
  'attention': 'xla', 'cca': 'xla', 'cross_entropy': 'xla', 'experts': 'hip',
  'muon_momentum': 'hip', 'newton_schulz': 'hip', 'residual_rms_norm': 'hip',
  'router': 'xla',
}  # fmt: skip
CUDA = {
  'attention': 'hopper', 'cca': 'hopper', 'cross_entropy': 'hopper',
  'experts': 'xla', 'muon_momentum': 'xla', 'newton_schulz': 'hopper',
  'residual_rms_norm': 'xla', 'router': 'xla',
}  # fmt: skip


def test_without_triton_both_kinds_of_gpu_have_engines(emulated):
  done = subprocess.run(
    [sys.executable, '-c', WITHOUT], capture_output=True, text=True, check=False
  )
  assert not done.returncode, done.stderr
  found = json.loads(done.stdout)
  assert found['engines'] == {'rocm': ROCM, 'cuda': CUDA}
  # A kernel that needs no Triton computes the same there.
  assert max(found['off']) < 1e-4
  assert found['told'].endswith(' has no backend for Triton')


def test_with_triton_its_kernels_are_the_default_on_rocm(monkeypatch):
  monkeypatch.setattr(native, 'unavailable', lambda kernel: None)
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)
  triton = {'attention', 'cca', 'cross_entropy'}
  found = defaults.engines()['rocm']
  assert found == {**ROCM, **dict.fromkeys(triton, 'triton')}

# SPDX-License-Identifier: Apache-2.0
"""A jax without a Triton backend: what runs instead, on ROCm and on CUDA."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
if sys.argv[1] == 'gone':
  sys.modules['jax.experimental.pallas.triton'] = None
import jax, numpy as np
import ops
from ops import dispatch, native, registry
from ops.hopper import warp_groups

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
engines, shape = {}, lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
class Zeros(np.random.Generator):
  def standard_normal(self, size=None, dtype=np.float64, out=None):
    return np.broadcast_to(np.zeros((), dtype), size or ())
for name in registry.FUNCTIONS:
  op = registry.operation(name)
  case = next(case for case in op.cases if case.zaya)
  drawn, kwargs = case.arguments(Zeros(np.random.PCG64(0)), jax.numpy.bfloat16)
  drawn = jax.tree.map(shape, drawn)
  if name == 'residual_rms_norm':  # The three that may be left out.
    drawn = (*drawn, *[None] * (10 - len(drawn)))
  for platform in dispatch.GPUS:
    with dispatch.compile_for(platform):
      run = dispatch.select(name, op.engines, *drawn, **kwargs)
    engine = next(e.name for e in op.engines if e.run is run)
    engines.setdefault(platform, {})[name] = engine
  if name == 'router':
    reasons = [e.unsupported(*drawn, **kwargs) for e in op.engines]
print(json.dumps({'engines': engines, 'off': off, 'told': reasons[0]}))
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


def _run(how):
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT, how],
    capture_output=True,
    text=True,
    check=False,
  )
  assert not done.returncode, done.stderr
  return json.loads(done.stdout)


def test_without_triton_both_kinds_of_gpu_have_engines(emulated):
  found = _run('gone')
  assert found['engines'] == {'rocm': ROCM, 'cuda': CUDA}
  # A kernel that needs no Triton computes the same there.
  assert max(found['off']) < 1e-4
  assert found['told'].endswith(' has no backend for Triton')


def test_with_triton_its_kernels_are_the_default_on_rocm(emulated):
  found = _run('there')['engines']['rocm']
  triton = {'attention', 'cca', 'cross_entropy'}
  assert found == {**ROCM, **dict.fromkeys(triton, 'triton')}

# SPDX-License-Identifier: Apache-2.0
"""The machine code for MI300X: registers, memory, matrix instructions.

One file: its tests share what takes half a minute to compile. Nothing here ran
on a GPU.
"""

import re
import shutil

import pytest

from tests.support.ops import native_build as build
from tests.support.ops import native_code
from tests.support.ops import native_report as report

ROOT = build.SOURCE / 'build' / 'rocm_root'
# Kernel -> the most vector instructions and the most stores of a tile outside
# of its main loop; with 128 sums a lane, as clang 19 has them and a tenth more.
ENDS = {
  'experts_up_bf16': (2830, 48),
  'experts_down_bf16': (1320, 32),
  'experts_d_x_bf16': (1160, 32),
  'experts_d_up_bf16': (2410, 64),
  'experts_d_weights_bf16': (1320, 32),
  'symmetric_matmul_bf16': (4080, 288),
  'symmetric_matmul_f16': (3160, 288),
}
# Edge -> matrix instructions of a turn; what one takes of its SIMD.
MFMA = {32: (64, 32), 16: (128, 16)}
BF16 = 'v_cvt_pk_bf16_f32 v0, v1, v2'


@pytest.fixture(scope='module', params=MFMA)
def edge(request):
  """Of the matrix instructions."""
  return request.param


@pytest.fixture(scope='module')
def compiled(edge):
  return compile_for_gfx942(edge=edge)


def compile_for_gfx942(*patches, kernels=(), edge=32):
  if reason := build.missing('clang++-19', 'lld-19'):
    pytest.skip(f'{reason}; see ops/native/README.md')
  if not (ROOT / '.complete').exists():
    pytest.skip('no HIP headers here: make -C ops/native gfx942')
  # Whatever is newer: tests do not reach for the network.
  root = (f'ROCM_ROOT={ROOT}', '-o', f'{ROOT}/.complete')
  return build.build(
    'gfx942', *patches, kernels=kernels, edge=edge, variables=root
  )


def test_every_kernel_is_within_its_budget(compiled):
  found = report.read(compiled)
  assert {path.stem for path in compiled.glob('*.co')} == {
    path.stem for path in build.SOURCE.glob('*.hip') if path.stem != 'library'
  }
  assert found
  for name, resources in found.items():
    assert resources.within(report.budget(name)), (name, resources)


def test_document_has_what_the_compiler_says():
  compiled = compile_for_gfx942()
  found, written = report.table(compiled), report.written()
  if found.split('\n')[0] != written.split('\n')[0]:
    pytest.skip(f'docs/kernels.md is of another compiler than {found[:40]}...')
  assert found == written, 'python -m tests.support.ops.native_report'


def test_spills_are_seen():
  made = compile_for_gfx942(
    (
      'symmetric_matmul.hip',
      '__launch_bounds__(kThreads)',
      '__launch_bounds__(1024)',
    ),
    kernels=('symmetric_matmul',),
  )
  for name, resources in report.read(made).items():
    assert resources.scratch and resources.spills
    assert not resources.within(report.budget(name))


@pytest.fixture(scope='module')
def codes(compiled):
  """What stands between the matrix instructions, and behind them."""
  texts = [path.read_text() for path in sorted(compiled.glob('*.s'))]
  return {
    name: native_code.read(text, name)
    for text in texts
    for name in re.findall(r'^\s*\.amdhsa_kernel (\w+)', text, re.M)
    if name in ENDS
  }


def test_loops_have_all_matrix_instructions(codes, edge):
  assert set(codes) == set(ENDS)
  kind = f'v_mfma_f32_{edge}x{edge}x'
  for name, code in codes.items():
    assert sum(line.startswith(kind) for line in code.loop) == MFMA[edge][0]
    assert not any(line.startswith('v_mfma') for line in code.rest), name


def test_no_barrier_waits_for_memory(codes):
  for name, code in codes.items():
    assert sum(line == 's_barrier' for line in code.loop) == 2, name
    assert not native_code.waits_for_memory(code.loop), name


def test_a_barrier_that_waits_for_memory_is_seen(codes):
  loop = list(codes['experts_up_bf16'].loop)
  at = loop.index('s_barrier')
  loop.insert(at, 's_waitcnt vmcnt(0) lgkmcnt(0)')
  assert native_code.waits_for_memory(tuple(loop)) == [loop[at]]
  # Matrix instructions behind it hide it.
  loop.insert(at + 1, next(line for line in loop if line.startswith('v_mfma')))
  assert not native_code.waits_for_memory(tuple(loop))


def test_ends_are_within_their_budgets(codes):
  for name, code in codes.items():
    numbers = [native_code.count(code.rest, s) for s in ('v_', 'global_store')]
    most = ENDS[name]
    assert all(n <= m for n, m in zip(numbers, most, strict=True)), (
      name,
      numbers,
    )


def test_stores_of_two_bytes_are_beyond_the_budget(codes):
  """As they were: a store for each of 128 sums."""
  rest, most = codes['experts_down_bf16'].rest, ENDS['experts_down_bf16'][1]
  wide = native_code.count(rest, 'global_store')
  narrow = tuple(line for line in rest if 'global_store' not in line)
  narrow += ('global_store_short_d16_hi v[0:1], v2, off',) * 4 * wide
  assert wide <= most < native_code.count(narrow, 'global_store')


@pytest.mark.skipif(not shutil.which('llvm-mca-19'), reason='no llvm-mca-19')
def test_all_else_of_a_turn_hides_behind_the_matrix_unit(codes, edge):
  """Two waves share a SIMD, and its matrix unit is busy for both."""
  count, each = MFMA[edge]
  busy = 2 * count * each
  for name, code in codes.items():
    assert native_code.cycles(code.loop) < busy, name
  # A turn with three times as many vector instructions would not.
  loop = codes['experts_up_bf16'].loop
  slow = (*loop, *['v_add_u32_e32 v0, v1, v0'] * 600)
  assert native_code.cycles(slow) > busy
  # The model has the same times of matrix instructions.
  alone = tuple(line for line in loop if line.startswith('v_mfma'))
  assert native_code.cycles(alone) == pytest.approx(busy / 2, rel=0.01)


@pytest.mark.skipif(not shutil.which('llvm-mc-19'), reason='no llvm-mc-19')
def test_no_instruction_rounds_to_bfloat16():
  """The reason for `bf16::two`: gfx942 has packed f16, but no bf16."""
  assembled = native_code.assembles
  assert not assembled(BF16)
  assert assembled('v_cvt_pkrtz_f16_f32 v0, v1, v2')

# SPDX-License-Identifier: Apache-2.0
"""The machine code for MI300X: registers, memory, matrix instructions."""

import pytest

from tests.support.ops import native_build as build
from tests.support.ops import native_report as report

ROOT = build.SOURCE / 'build' / 'rocm_root'


@pytest.fixture(scope='module')
def compiled():
  return compile_for_gfx942()


def compile_for_gfx942(*patches, kernels=()):
  if reason := build.missing('clang++-19', 'lld-19'):
    pytest.skip(f'{reason}; see ops/native/README.md')
  if not (ROOT / '.complete').exists():
    pytest.skip('no HIP headers here: make -C ops/native gfx942')
  # Whatever is newer: tests do not reach for the network.
  root = (f'ROCM_ROOT={ROOT}', '-o', f'{ROOT}/.complete')
  return build.build('gfx942', *patches, kernels=kernels, variables=root)


def test_every_kernel_is_within_its_budget(compiled):
  found = report.read(compiled)
  assert {path.stem for path in compiled.glob('*.co')} == {
    path.stem for path in build.SOURCE.glob('*.hip') if path.stem != 'library'
  }
  assert found
  for name, resources in found.items():
    assert resources.within(report.budget(name)), (name, resources)


def test_document_has_what_the_compiler_says(compiled):
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

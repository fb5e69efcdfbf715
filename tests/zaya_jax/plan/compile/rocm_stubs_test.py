# SPDX-License-Identifier: Apache-2.0
"""Libraries that stand in for ROCm's: which symbol goes where, and loads."""

import ctypes
import shutil

import pytest

from zaya_jax.plan.compile import rocm_stubs


def test_symbols_go_to_the_libraries_that_have_them():
  found = rocm_stubs._by_library(
    {
      'hipMalloc@hip_4.2', 'hipFree', 'hipblasCreate', 'hipblasLtCreate',
      'ncclAllReduce', 'rocblas_sgemm', 'memcpy@GLIBC_2.14', 'hipMalloc',
      'somethingElse',
    }
  )  # fmt: skip
  assert found == {
    'libamdhip64.so.7': {'hip_4.2': {'hipMalloc'}, '': {'hipFree'}},
    'libhipblas.so.3': {'': {'hipblasCreate'}},
    'libhipblaslt.so.1': {'': {'hipblasLtCreate'}},
    'librccl.so.1': {'': {'ncclAllReduce'}},
    'librocblas.so.5': {'': {'rocblas_sgemm'}},
  }


@pytest.mark.skipif(not shutil.which('gcc'), reason='no gcc')
def test_library_says_that_there_is_no_gpu(tmp_path):
  versions = {'': {'hipMalloc', 'hipGetDeviceCount', 'hipGetErrorString'}}
  rocm_stubs._build(tmp_path, 'libamdhip64.so.7', versions)
  library = ctypes.CDLL(str(tmp_path / 'libamdhip64.so.7'))
  assert library.hipMalloc() != 0  # An error.
  count = ctypes.c_int(8)
  assert library.hipGetDeviceCount(ctypes.byref(count)) == 100
  assert count.value == 0
  library.hipGetErrorString.restype = ctypes.c_char_p
  assert library.hipGetErrorString(100) == b'no AMD GPU here'

# SPDX-License-Identifier: Apache-2.0
"""Makes libraries that stand in for ROCm's, so that its compiler can load.

    python -m zaya_jax.plan.compile.rocm_stubs FOLDER

The plugin of jax for ROCm holds the whole compiler, but the dynamic linker
wants HIP, RCCL and others beside it. Each function here returns an error; none
is needed to compile. Runs in the environment of the plugin; needs gcc, nm and
readelf.
"""

import collections
import importlib.util
import pathlib
import re
import subprocess
import sys

_HIP = 'libamdhip64.so.7'
# Start of a symbol -> the library that has it; the first match counts.
_OWNERS = (
  (r'__?hip|hip(?!blas|fft|sparse|solver)', _HIP),
  (r'miopen', 'libMIOpen.so.1'),
  (r'hipblasLt|_ZNK?13hipblaslt', 'libhipblaslt.so.1'),
  (r'hipblas', 'libhipblas.so.3'),
  (r'hipfft', 'libhipfft.so.0'),
  (r'nccl', 'librccl.so.1'),
  (r'rocblas', 'librocblas.so.5'),
  (r'rocprofiler', 'librocprofiler-sdk.so.1'),
  (r'rsmi', 'librocm_smi64.so.1'),
  (r'hipsparse', 'libhipsparse.so.4'),
  (r'hipsolver', 'libhipsolver.so.1'),
  (r'rocsolver', 'librocsolver.so.0'),
)
_SYSTEM = re.compile(r'lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.|ld-linux')
_VERSIONED = re.compile(r'GLIBC|GCC|CXXABI')
_TEXT = 'return "no AMD GPU here";'
_SPECIAL = {
  'hipGetDeviceCount': 'int hipGetDeviceCount(int *n) {*n = 0; return 100;}',
  '__hipRegisterFatBinary': (
    'void **__hipRegisterFatBinary(void *d) {static void *p[4]; return p;}'
  ),
  'hipGetLastError': 'int hipGetLastError(void) {return 0;}',
  'hipRuntimeGetVersion': (
    'int hipRuntimeGetVersion(int *v) {*v = 70125424; return 0;}'
  ),
  'hipDriverGetVersion': (
    'int hipDriverGetVersion(int *v) {*v = 70125424; return 0;}'
  ),
  'ncclGetVersion': 'int ncclGetVersion(int *v) {*v = 22703; return 0;}',
  **{
    name: f'const char *{name}(int e) {{{_TEXT}}}'
    for name in (
      'hipGetErrorString', 'ncclGetErrorString', 'ncclGetLastError',
      'rocprofiler_get_status_string',
    )
  },
}  # fmt: skip


def main(folder: str) -> None:
  """Writes the libraries to `folder`."""
  out = pathlib.Path(folder)
  out.mkdir(parents=True, exist_ok=True)
  plugin = pathlib.Path(importlib.util.find_spec('jax_rocm7_plugin').origin)
  site = plugin.parents[1]
  needed, symbols = set(), set()
  for path in (
    *site.glob('jax_plugins/xla_rocm7/*.so'),
    *site.glob('jax_rocm7_plugin/*.so'),
  ):
    found = re.findall(r'NEEDED.*\[(.*?)\]', _run('readelf', '-dW', path))
    needed |= {name for name in found if not _SYSTEM.match(name)}
    listed = _run('nm', '-D', '--undefined-only', path).splitlines()
    symbols |= {w[-1] for w in map(str.split, listed) if w[-2] == 'U'}
  wanted = _by_library(symbols)
  # HIP first: the others are linked with it.
  for library in sorted(needed, key=lambda name: name != _HIP):
    _build(out, library, wanted[library])


def _by_library(symbols: set[str]) -> dict[str, dict[str, set[str]]]:
  """Library -> version -> names."""
  wanted: dict[str, dict[str, set[str]]] = collections.defaultdict(
    lambda: collections.defaultdict(set)
  )
  for symbol in symbols:
    name, _, version = symbol.partition('@')
    version = version.lstrip('@')
    if not _VERSIONED.match(version):
      for start, library in _OWNERS:
        if re.match(start, name):
          wanted[library][version].add(name)
          break
  for versions in wanted.values():
    # A name that is asked for without a version gets the one there is.
    named = set().union(*(names for v, names in versions.items() if v))
    versions[''] -= named
  return wanted


def _build(out, library, versions) -> None:
  names = sorted(set().union(*versions.values()) if versions else ())
  source = out / f'{library}.c'
  source.write_text(
    ''.join(
      f'{_SPECIAL.get(n) or f"int {n}() {{return 100;}}"}\n' for n in names
    )
  )
  script = out / f'{library}.map'
  script.write_text(
    ''.join(
      f'{version} {{ global: {" ".join(f"{n};" for n in sorted(found))} }};\n'
      for version, found in sorted(versions.items())
      if version
    )
  )
  command = [
    'gcc', '-shared', '-fPIC', '-w', '-O1', f'-Wl,-soname,{library}',
    '-o', out / library, source,
  ]  # fmt: skip
  if script.read_text():
    command.append(f'-Wl,--version-script={script}')
  if library != _HIP:
    command += ['-Wl,--no-as-needed', f'-L{out}', f'-l:{_HIP}']
  _run(*command)


def _run(*command) -> str:
  return subprocess.run(
    list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
  ).stdout


if __name__ == '__main__':
  main(sys.argv[1])

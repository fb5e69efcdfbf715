# SPDX-License-Identifier: Apache-2.0
"""What the compiler says of each kernel on gfx942, and what it may say.

    python -m tests.support.ops.native_report [BUILD]

writes the table of docs/kernels.md, from BUILD/gfx942/*.s, which
`make -C ops/native gfx942` makes (BUILD: ops/native/build).
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[3]
DOCUMENT = ROOT / 'docs' / 'kernels.md'
BEGIN, END = '<!-- kernels -->\n', '<!-- end of kernels -->\n'


@dataclasses.dataclass(frozen=True)
class Resources:
  """Of a kernel, or the most that it may have.

  Attributes:
    registers: vector registers of a lane, VGPR and AGPR together.
    lds: bytes of a block.
    waves: per SIMD; of a budget, the least.
    mfma: matrix instructions in the code; of a budget, the least.
    scratch: bytes of a lane.
    spills: registers.
    wide: of the instructions that load from memory, how many take 16 bytes.
    loads: all of these.
    accumulators: AGPR among the registers.
    scalars: SGPR.
  """

  registers: int
  lds: int
  waves: int
  mfma: int = 0
  scratch: int = 0
  spills: int = 0
  wide: int = 0
  loads: int = 0
  accumulators: int = 0
  scalars: int = 0

  def within(self, budget: 'Resources') -> bool:
    """Whether this is not beyond `budget`: its 16-byte loads are the least."""
    return (
      self.registers <= budget.registers
      and self.lds <= budget.lds
      and self.waves >= budget.waves
      and self.mfma >= budget.mfma
      and self.scratch <= budget.scratch
      and self.spills <= budget.spills
      and self.wide >= budget.wide
    )


# The start of a kernel's name -> its budget; the longest start counts. Neither
# scratch nor spills are anybody's.
BUDGETS = {
  # Two waves share 512 registers. 32 MFMA per 32 of depth, in two stages.
  'symmetric_matmul': Resources(256, 65536, 2, mfma=64, wide=16),
  'experts': Resources(256, 65536, 2, mfma=64, wide=16),
  # Arithmetic is nothing; as many waves as there can be wait for memory.
  'muon_momentum': Resources(64, 0, 8, wide=12),
  # One pass: a row in registers, reduced through LDS.
  'residual_rms_norm': Resources(96, 64, 5, wide=16),
  'residual_rms_norm_back': Resources(168, 64, 3, wide=22),
}


def budget(kernel: str) -> Resources:
  """Its budget.

  Raises:
    KeyError: if it has none.
  """
  return BUDGETS[max(filter(kernel.startswith, BUDGETS), key=len, default='')]


def read(folder: pathlib.Path) -> dict[str, Resources]:
  """Kernel -> what it needs, of all .s files in the folder."""
  return {
    name: found
    for path in sorted(folder.glob('*.s'))
    for name, found in _kernels(path.read_text())
  }


def _kernels(text):
  for name in re.findall(r'^\s*\.amdhsa_kernel (\w+)', text, re.M):
    code = text[text.index(f'\n{name}:') :]
    code, info = code.split(f'.amdhsa_kernel {name}', 1)
    of = lambda pattern, info=info: int(re.search(pattern, info)[1])
    loads = re.findall(r'^\s*(?:global|flat|buffer)_load_(\w+)', code, re.M)
    notes = re.search(
      rf'\.name: +{name}\n(?:.*\n)*?.*\.vgpr_spill_count: (\d+)', text
    )
    yield (
      name,
      Resources(
        registers=of(r'; TotalNumVgprs: (\d+)'),
        accumulators=of(r'; NumAgprs: (\d+)'),
        scalars=of(r'; NumSgprs: (\d+)'),
        lds=of(r'; LDSByteSize: (\d+)'),
        waves=of(r'; Occupancy: (\d+)'),
        mfma=len(re.findall(r'^\s*v_mfma_', code, re.M)),
        scratch=of(r'; ScratchSize: (\d+)'),
        spills=int(notes[1]),
        wide=loads.count('dwordx4'),
        loads=len(loads),
      ),
    )


def table(folder: pathlib.Path) -> str:
  """In Markdown, budgets in brackets, under the version of the compiler."""
  # The first; another one may be that of the device libraries.
  compiler = re.search(
    r'\.ident\s+"(.*)"', next(folder.glob('*.s')).read_text()
  )
  lines = [
    f'{compiler[1]}:\n',
    '| kernel | VGPR and AGPR | SGPR | LDS, bytes | waves per SIMD | MFMA '
    '| 16-byte loads | scratch, spills |',
    '| --- ' * 8 + '|',
  ]
  for name, r in sorted(read(folder).items()):
    most = budget(name)
    lines.append(
      f'| `{name}` | {r.registers - r.accumulators} + {r.accumulators} '
      f'(≤ {most.registers}) | {r.scalars} | {r.lds} (≤ {most.lds}) '
      f'| {r.waves} (≥ {most.waves}) | {r.mfma} (≥ {most.mfma}) '
      f'| {r.wide} of {r.loads} (≥ {most.wide}) | {r.scratch}, {r.spills} |'
    )
  return '\n'.join(lines) + '\n'


def written() -> str:
  """The table in the document."""
  return DOCUMENT.read_text().split(BEGIN)[1].split(END)[0]


def main() -> None:
  """Writes the document anew."""
  build = pathlib.Path(*sys.argv[1:] or (ROOT / 'ops/native/build',))
  before, rest = DOCUMENT.read_text().split(BEGIN)
  after = rest.split(END)[1]
  DOCUMENT.write_text(before + BEGIN + table(build / 'gfx942') + END + after)


if __name__ == '__main__':
  main()

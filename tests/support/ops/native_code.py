# SPDX-License-Identifier: Apache-2.0
"""The machine code of a kernel for gfx942: its main loop, and the rest."""

import dataclasses
import re
import subprocess

_MFMA = 'v_mfma'
_BRANCH = re.compile(r's_c?branch\w* (\S+)')


@dataclasses.dataclass(frozen=True)
class Code:
  """Of one kernel.

  Attributes:
    loop: instructions of the innermost loop that has all matrix instructions.
    rest: those before and behind it, in whichever order clang put them.
  """

  loop: tuple[str, ...]
  rest: tuple[str, ...]


def read(text: str, kernel: str) -> Code:
  """Of `kernel` in an assembly file."""
  text = text[text.index(f'\n{kernel}:') :].split('.section')[0]
  lines = [line.split(';')[0].strip() for line in text.splitlines()]
  lines = [line for line in lines if line and not line.startswith('.p2')]
  places = {line[:-1]: i for i, line in enumerate(lines) if line[-1] == ':'}
  whole = sum(line.startswith(_MFMA) for line in lines)
  first, last = 0, len(lines)
  for end, line in enumerate(lines):
    found = _BRANCH.match(line)
    start = places.get(found[1], end) if found else end
    inside = sum(each.startswith(_MFMA) for each in lines[start:end])
    if start < end and inside == whole and end - start < last - first:
      first, last = start, end + 1
  plain = lambda some: tuple(line for line in some if line[-1] != ':')
  return Code(plain(lines[first:last]), plain(lines[:first] + lines[last:]))


def count(code: tuple[str, ...], start: str) -> int:
  """Instructions whose names begin so; matrix instructions are not `v_`."""
  return sum(
    line.startswith(start) and not line.startswith(_MFMA) for line in code
  )


def waits_for_memory(loop: tuple[str, ...]) -> list[str]:
  """Waits for all memory between the newest load, and a barrier behind it.

  Where matrix instructions stand between both, they hide the wait.
  """
  found, since = [], []
  for line in loop:
    if line.startswith((_MFMA, 'global_load')):
      since = []
    elif line.startswith('s_waitcnt'):
      since.append(line)
    elif line.startswith('s_barrier'):
      found += [wait for wait in since if 'vmcnt(0)' in wait]
  return found


def cycles(loop: tuple[str, ...], turns: int = 20) -> float:
  """Of a turn of the loop of one wave alone, by LLVM's model of the chip.

  The model counts in fours: an instruction of 64 lanes takes a SIMD so long.
  """
  done = subprocess.run(
    [
      'llvm-mca-19', '-mtriple=amdgcn', '-mcpu=gfx942',
      f'-iterations={turns}', '-instruction-info=0', '-resource-pressure=0',
    ],
    input='\n'.join(line for line in loop if not _BRANCH.match(line)),
    capture_output=True,
    text=True,
    check=True,
  )  # fmt: skip
  return 4 * int(re.search(r'Total Cycles: +(\d+)', done.stdout)[1]) / turns


def assembles(instruction: str) -> bool:
  """Whether gfx942 has it."""
  done = subprocess.run(
    ['llvm-mc-19', '-triple=amdgcn-amd-amdhsa', '-mcpu=gfx942'],
    input=instruction,
    capture_output=True,
    text=True,
    check=False,
  )
  return not done.returncode

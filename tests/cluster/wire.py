# SPDX-License-Identifier: Apache-2.0
"""A poor network: cables whose packets are late or lost.

Linux does so by itself (`tc netem`) where the kernel has it. A cable here is
two TAP devices, of control and of a node, and a program between them.

  python -m tests.cluster.wire PID_OF_NODE NAME NUMBER LOSS DELAY_S
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

_SET, _TAP_WITHOUT_HEADER = 0x400454CA, 0x1002  # TUNSETIFF, IFF_TAP|IFF_NO_PI
_FRAME = 65536
NET = '10.78'


def main(pid: int, name: str, number: int, loss: float, delay_s: float) -> None:
  """Carries packets until it is killed."""
  near = _tap(f'w{number}', f'{NET}.{number}.254')
  with open('/proc/self/ns/net') as here, open(f'/proc/{pid}/ns/net') as there:
    _enter(there.fileno())
    far = _tap('wire', f'{NET}.{number}.{number}')
    _enter(here.fileno())
  print(f'{name} is connected', flush=True)
  other, chance = {near: far, far: near}, random.Random(number)
  late: list[tuple[float, int, int, bytes]] = []
  count = 0
  while True:
    wait = max(0.0, late[0][0] - time.monotonic()) if late else None
    for end in select.select([near, far], [], [], wait)[0]:
      frame = os.read(end, _FRAME)
      if chance.random() >= loss:
        count += 1  # Those of one time keep their order.
        due = time.monotonic() + delay_s
        heapq.heappush(late, (due, count, other[end], frame))
    while late and late[0][0] <= time.monotonic():
      _, _, end, frame = heapq.heappop(late)
      os.write(end, frame)


def _tap(name: str, address: str) -> int:
  """Makes a network device of this namespace; returns its file."""
  file = os.open('/dev/net/tun', os.O_RDWR)
  fcntl.ioctl(
    file, _SET, struct.pack('16sH', name.encode(), _TAP_WITHOUT_HEADER)
  )
  subprocess.run(
    ['ip', 'addr', 'add', f'{address}/24', 'dev', name], check=True
  )
  subprocess.run(['ip', 'link', 'set', name, 'up'], check=True)
  return file


def _enter(namespace: int) -> None:
  """Moves this process into a network namespace (os.setns, Python 3.12)."""
  if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
    raise OSError(ctypes.get_errno(), 'setns')


if __name__ == '__main__':
  main(
    int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
  )

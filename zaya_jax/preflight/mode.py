# SPDX-License-Identifier: Apache-2.0
"""--mode=preflight: is this node fit, and if not, why."""

import dataclasses
import json
import platform
import time

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import known
from zaya_jax.config import exit_codes
from zaya_jax.preflight import judge as judge_lib
from zaya_jax.preflight import node as node_lib
from zaya_jax.preflight import rules, table
from zaya_jax.runtime import durable


def main(config: config_lib.Config) -> int:
  """Checks this node, prints a table and writes --output, if it is given.

  Returns:
    The exit code: 0 if the node is fit, 3 if it is not.

  Raises:
    MachineFileError: if --preflight.machine is no such file, or is damaged.
  """
  start = time.monotonic()
  if config.preflight.machine:
    known.find(config.preflight.machine)
  said = {
    'devices': config.preflight.devices,
    'ports': config.preflight.ports,
  }
  node = node_lib.Node(config.preflight.machine)
  checks = examine(node, said, config.run_dir)
  table.show(checks)
  if not node.tags() & {'gpu'}:
    print('There is no GPU here: the rules for GPUs were left out.')
  verdict, name = table.verdict(checks), platform.node()
  is_fit = all(check.outcome != 'fault' for check in checks)
  if config.output:
    content = {
      'node': name,
      'fit': is_fit,
      'verdict': verdict,
      'seconds': round(time.monotonic() - start, 1),
      'checks': [dataclasses.asdict(check) for check in checks],
    }
    text = json.dumps(content, indent=1)
    durable.replace(config.output, f'{text}\n'.encode())
  print(f'{name} is {verdict}.', flush=True)
  return exit_codes.DONE if is_fit else exit_codes.UNUSABLE


def examine(
  node: node_lib.Node, said: dict[str, int], run_dir: str = ''
) -> list[judge_lib.Check]:
  """Applies all rules that are for a node.

  Args:
    node: that is asked.
    said: numbers of --preflight.devices and --preflight.ports.
    run_dir: of --run_dir.
  """
  judge = judge_lib.Judge(node, said, run_dir)
  mine = [rule for rule in rules.read() if judge.applies(rule)]
  node.ask(words for rule in mine if (words := judge.words(rule)))
  return [judge.check(rule) for rule in mine]

# SPDX-License-Identifier: Apache-2.0
"""All rules that are for a node, applied to it."""

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import known
from zaya_jax.preflight import judge as judge_lib
from zaya_jax.preflight import node as node_lib
from zaya_jax.preflight import rules


def this_node(
  config: config_lib.Config,
) -> tuple[node_lib.Node, list[judge_lib.Check]]:
  """This node, and what the rules say of it.

  Raises:
    MachineFileError: if --preflight.machine is no such file, or is damaged.
  """
  if config.preflight.machine:
    known.find(config.preflight.machine)
  said = {
    'devices': config.preflight.devices,
    'ports': config.preflight.ports,
  }
  node = node_lib.Node(config.preflight.machine)
  return node, examine(node, said, config.run_dir)


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

# SPDX-License-Identifier: Apache-2.0
"""Adapters, preferences, and models of few bits: what goes with what."""

from zaya_jax.config import fields, run

# Modes that read a model which --quant rounds.
_QUANT = ('eval', 'generate', 'chat', 'serve', 'conform', 'export')
# Where it rounds the frozen base of an adapter.
_QUANT_BASE = ('train', 'supervise', 'plan')


def check_quant(config: run.Config) -> None:
  """Whether the mode reads a model that can be rounded."""
  if config.quant == 'none':
    return
  said = f'--quant={config.quant}'
  if config.mode in _QUANT_BASE:
    _check_quant_base(config, said)
    return
  if config.mode not in _QUANT:
    raise fields.UsageError(
      f'{said} rounds a model that is read by {", ".join(_QUANT)}, and '
      f'--mode={config.mode} takes it as it is; leave it out.'
    )
  if config.mode == 'export' and config.export.layout == 'peft':
    raise fields.UsageError(
      f'{said}: an adapter of PEFT (--export.layout=peft) is not rounded; '
      'leave one of the two out.'
    )
  if config.mode == 'conform' and (config.source or config.output):
    raise fields.UsageError(
      f'{said} rounds our own model, and --mode=conform with --source or '
      '--output has another one, or none; leave one of the two out.'
    )


def check_lora(config: run.Config) -> None:
  """Whether there is a model to adapt, and one length of the run."""
  rank = config.lora.rank
  if rank and not config.restore:
    raise fields.UsageError(
      f'--lora.rank={rank} adapts a model, and --restore= names none; name '
      f'a run directory, a checkpoint or a Hugging Face folder.'
    )
  if rank and config.recipe:
    raise fields.UsageError(
      f'--lora.rank={rank} and --recipe={config.recipe} do not go together; '
      'train an adapter for --num_steps, --tokens or --epochs.'
    )


def check_dpo(config: run.Config) -> None:
  """Whether there is a model to compare with, and rows lie whole."""
  said = f'--dpo.beta={config.dpo.beta:g}'
  if not config.dpo.beta:
    for name in ('label_smoothing', 'nll_weight'):
      if value := getattr(config.dpo, name):
        raise fields.UsageError(
          f'--dpo.{name}={value:g} is of --dpo.beta, which is 0; set it, or '
          'leave both out.'
        )
    return
  if not config.restore:
    raise fields.UsageError(
      f'{said} compares with the model that training begins with, and '
      '--restore= names none; name a run directory, a checkpoint or a Hugging '
      'Face folder.'
    )
  if config.recipe:
    raise fields.UsageError(
      f'{said} and --recipe={config.recipe} do not go together: a recipe has '
      'no one model to compare with; train preferences for --num_steps, '
      '--tokens or --epochs.'
    )
  if config.optim.balance == 'loss':
    raise fields.UsageError(
      f'{said} and --optim.balance=loss do not go together: only the loss of '
      'texts has the auxiliary one beside it; take another --optim.balance.'
    )
  if not config.data.mask_documents:
    raise fields.UsageError(
      f'{said} and --data.mask_documents=false do not go together: an answer '
      'would see the others of its sequence; leave the latter out.'
    )
  if config.mesh.context > 1:
    raise fields.UsageError(
      f'{said} sums over whole answers, and --mesh.context='
      f'{config.mesh.context} divides rows; use --mesh.replica.'
    )


def _check_quant_base(config: run.Config, said: str) -> None:
  """Whether what is rounded stays so, and lies whole on each device."""
  if not config.lora.rank:
    raise fields.UsageError(
      f'{said} rounds the frozen base of an adapter, and --mode={config.mode} '
      'without --lora.rank trains all parameters, which cannot be rounded; '
      'set --lora.rank, or leave --quant out.'
    )
  if config.mesh.fsdp > 1:
    raise fields.UsageError(
      f'{said} keeps numbers and scales whole on each device, and --mesh.fsdp='
      f'{config.mesh.fsdp} divides matrices; use --mesh.replica or '
      '--mesh.expert, or leave --quant out.'
    )

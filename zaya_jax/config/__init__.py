# SPDX-License-Identifier: Apache-2.0
"""Every setting of a run: names, defaults, help texts and checks.

Frozen dataclasses are the single source. `flags` turns each field into one absl
flag (`ModelConfig.d_model` is `--model.d_model`) and back. Nothing here imports
jax: a wrong flag is reported before anything heavy loads.
"""

from zaya_jax.config import (
  aegis,
  data,
  fields,
  machine,
  model,
  modes,
  run,
  training,
)

VERSION = '0.1.0'

UsageError = fields.UsageError
ModelConfig = model.ModelConfig
OF_THE_RUN = model.OF_THE_RUN
CheckpointConfig = training.CheckpointConfig
DataConfig = data.DataConfig
GuardConfig = training.GuardConfig
LogConfig = modes.LogConfig
LoraConfig = model.LoraConfig
OptimConfig = training.OptimConfig
BenchConfig = machine.BenchConfig
ContactConfig = machine.ContactConfig
DpoConfig = model.DpoConfig
DistributedConfig = machine.DistributedConfig
MeshConfig = machine.MeshConfig
OpsConfig = machine.OpsConfig
PreflightConfig = machine.PreflightConfig
PlanConfig = machine.PlanConfig
EvalConfig = modes.EvalConfig
ExportConfig = modes.ExportConfig
GenerateConfig = modes.GenerateConfig
LedgerConfig = modes.LedgerConfig
QuantConfig = modes.QuantConfig
ReportConfig = modes.ReportConfig
ServeConfig = modes.ServeConfig
AegisConfig = aegis.AegisConfig
Config = run.Config

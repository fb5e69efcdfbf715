# SPDX-License-Identifier: Apache-2.0
"""amd-smi, from stored answers without and with faults."""

import json

import pytest

from tests.support import telemetry
from zaya_jax.aegis.watch.telemetry import gpus


def test_healthy_gpus_have_counts_of_zero():
  found = gpus.metric(telemetry.text('amd_smi_metric_clear.json'))
  assert found['gpu_ecc_uncorrect_total{gpu_id="0"}'] == 0
  assert found['gpu_ecc_uncorrect_umc{gpu_id="0"}'] == 0
  assert found['gpu_xgmi_errors{gpu_id="1"}'] == 0
  assert found['pcie_replay_count{gpu_id="1"}'] == 2
  assert not [name for name in found if 'xgmi_wafl' in name]  # N/A.


@pytest.mark.parametrize(
  'read, name, rises',
  [
    (
      gpus.metric,
      'amd_smi_metric',
      {
        'gpu_ecc_correct_total{gpu_id="0"}': 1,
        'gpu_ecc_uncorrect_total{gpu_id="0"}': 1,
        'gpu_ecc_deferred_total{gpu_id="0"}': 2,
        'gpu_ecc_correct_umc{gpu_id="0"}': 1,
        'gpu_ecc_uncorrect_umc{gpu_id="0"}': 1,
        'gpu_ecc_deferred_umc{gpu_id="0"}': 2,
        'pcie_replay_count{gpu_id="1"}': 5,
        'gpu_xgmi_errors{gpu_id="1"}': 2,
      },
    ),
    (
      gpus.pages,
      'amd_smi_pages',
      {
        'gpu_bad_pages_retired{gpu_id="0"}': 2,
        'gpu_bad_pages_pending{gpu_id="0"}': 1,
      },
    ),
    (
      gpus.ras,
      'amd_smi_ras',
      {'gpu_ras_disabled{gpu_id="0",block="umc"}': 1},
    ),
  ],
)
def test_faults_are_what_has_risen(read, name, rises):
  assert telemetry.rises(read, name, 'json') == rises


@pytest.mark.parametrize('read', [gpus.metric, gpus.pages, gpus.ras])
@pytest.mark.parametrize('name', ['metric', 'pages', 'ras'])
def test_damaged_output_is_a_word_or_a_part_never_another_error(read, name):
  text = telemetry.text(f'amd_smi_{name}_faults.json')
  for wrong in telemetry.damaged(text):
    try:
      assert isinstance(read(wrong), dict)
    except ValueError as error:
      assert str(error).startswith('it ')


def test_names_of_blocks_forge_no_counter():
  block = 'x{gpu_id="9"} gpu_ecc_uncorrect_umc'
  entry = {'gpu': 0, 'ecc_blocks': {block: {'uncorrectable_count': 1}}}
  assert gpus.metric(json.dumps([entry])) == {}

# SPDX-License-Identifier: Apache-2.0
"""What is measured, on a tiny model; the peak is that of Python and JAX."""

import json

import numpy as np
import pytest

from benchmarks import import_memory
from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.hub import folder as hub_folder

CONFIG = config_lib.Config(model=tiny.config(num_layers=3))


@pytest.mark.parametrize('layout', ['native', 'legacy'])
def test_model_is_written_whole_and_in_shards(tmp_path, layout, monkeypatch):
  monkeypatch.setattr(import_memory, '_SHARD', 4000)
  import_memory.write(tmp_path / 'model', CONFIG, layout, 2)
  config = hub_folder.read_config(str(tmp_path / 'model'))
  params, _ = hub_folder.read_params(str(tmp_path / 'model'), config)
  assert config.num_layers == 2
  assert np.std(params['layers']['experts']['down']) == pytest.approx(0.02, 0.1)
  assert len(list((tmp_path / 'model').glob('*.safetensors'))) > 2


def test_peak_is_that_of_the_import_and_the_model_fits(tmp_path):
  result = import_memory.measure(tmp_path, CONFIG, 'native', 3, free=20_000)
  assert result['layers'] < 3
  assert 50 * 2**20 < result['peak_bytes'] < 2**30
  assert result['limit_bytes'] == 2**30 + 2 * result['largest_tensor_bytes']
  assert json.loads(json.dumps(result)) == result

# SPDX-License-Identifier: Apache-2.0
"""Rules of the settings, and that each message names the flag and its value."""

import typing

import pytest

from zaya_jax import config
from zaya_jax.config import flags

# What each number may be, by what it is. Written by hand: bounds are part of
# what users rely on.
BOUNDS = {
  # Where 0 says none, all, never or automatic, and rates and norms.
  (0, None): """
    serve.queue serve.drain_s
    num_steps epochs hours model.sliding_window model.norm_eps model.init_std
    data.train_tokenizer data.val_tokens
    optim.lr optim.lr_final optim.warmup_steps
    optim.schedule_steps optim.decay_steps optim.weight_decay optim.clip_norm
    optim.adam_eps optim.balance_lr optim.balance_loss optim.accumulation
    guard.spike_limit guard.vote_every mesh.replica mesh.bucket_mib
    lora.rank lora.alpha
    distributed.processes plan.latency_ms plan.hours
    checkpoint.every checkpoint.keep_every checkpoint.host_memory_gb
    eval.every eval.batches eval.limit
    generate.temperature plan.tokens aegis.spares aegis.step_limit_s
    preflight.devices preflight.ports
    aegis.grace_s aegis.restarts_per_hour aegis.condemn_per_hour
    aegis.quarantine_h aegis.outage_wait_s log.sample_every log.peak_tflops
    ledger.step data.copies_gb dpo.beta dpo.nll_weight""",
  # Sizes, counts, intervals and limits of which there is at least one.
  (1, None): """
    model.num_layers model.d_model model.num_heads model.num_kv_heads
    model.conv_depthwise model.conv_grouped model.num_experts model.d_expert
    model.d_router model.rope_theta model.sliding_rope_theta data.shard_tokens
    data.workers
    data.batch_size optim.newton_schulz_steps
    optim.max_bad_steps mesh.fsdp mesh.expert mesh.context
    distributed.initialization_timeout_s distributed.collective_timeout_s
    checkpoint.keep checkpoint.timeout_s checkpoint.max_failed_saves
    checkpoint.ranks plan.devices bench.repeats aegis.ranks_per_node
    aegis.phase_limit_s aegis.no_progress aegis.start_limit_s
    aegis.lease_s log.every""",
  (0, 1024): 'serve.prefixes',
  (1, 1024): 'serve.slots',
  (2, 2**20): 'serve.context',
  # A token and the next one; a pair of rotated channels; a beat and the next.
  (2, None): """
    model.head_dim model.vocab_size data.record_tokens data.seq_len
    distributed.heartbeat_timeout_s report.tokens""",
  # Where -1 says that another place decides.
  (-1, None): 'distributed.process eval.num_fewshot',
  # Shares.
  (0, 1): """
    data.bad_rows
    model.rope_fraction optim.momentum optim.beta1 optim.beta2
    generate.top_p aegis.condemn_share""",
  (0, 0.5): 'dpo.label_smoothing',
  (0, 0.9): 'data.val_fraction',
  (0.01, 1): 'plan.efficiency',
  (0.01, None): 'bench.minutes',
  (0.5, None): 'contact.minutes',
  (2**12, 2**32): 'bench.max_bytes',
  (0, 65_535): 'aegis.port log.metrics_port report.port serve.port',
  (0, 2**32 - 1): 'seed',
  (0, 64): 'generate.no_repeat',
  (0, 128): 'dial',
  (1, 2**20): 'generate.max_tokens',
  (None, None): 'model.temperature_init',
}
# What else must be set for a value at its bound.
BESIDE = {
  'dial': {'given': frozenset({'dial'})},
  'model.num_heads': {'num_kv_heads': 1},
  'data.record_tokens': {'seq_len': 2},
  'model.rope_fraction': {'head_dim': 2},
  'model.head_dim': {'rope_fraction': 1.0},
}


NUMBERS = [
  (name, *bounds) for bounds, names in BOUNDS.items() for name in names.split()
]


def test_every_number_has_its_bounds_here():
  found = [
    setting.name
    for _, _, settings in flags.sections(config.Config)
    for setting in settings
    if setting.kind in (int, float)
  ]
  assert sorted(found) == sorted(' '.join(BOUNDS.values()).split())


@pytest.mark.parametrize('name, low, high', NUMBERS)
def test_number_at_its_bound_is_taken_and_beyond_refused(name, low, high):
  title, _, field = name.rpartition('.')
  hints = typing.get_type_hints(config.Config)
  field_of = {'serve': 'serving'}.get(title, title)
  section = hints[field_of] if title else config.Config
  least = 1 if typing.get_type_hints(section)[field] is int else 1e-9
  for bound, way in ((low, -least), (high, least)):
    if bound is not None:
      made = section(**{**BESIDE.get(name, {}), field: bound})
      assert getattr(made, field) == bound
      with pytest.raises(config.UsageError) as caught:
        section(**{field: bound + way})
      assert f'{name}={bound + way} must be at ' in str(caught.value)


@pytest.mark.parametrize(
  'make, sentence',
  [
    (lambda: config.OptimConfig(lr=float('nan')), '--optim.lr=nan must be a f'),
    (lambda: config.OptimConfig(lr=float('inf')), '--optim.lr=inf must be a f'),
    (lambda: config.Config(num_steps=1e3), '--num_steps=1000.0 must be a who'),
    (lambda: config.Config(num_steps=True), '--num_steps=True must be a whole'),
    (lambda: config.Config(resume='no'), "--resume='no' must be true or false"),
    (
      lambda: config.DataConfig(dir='data'),
      "--data.dir='data' must be a tuple",
    ),
    (lambda: config.ModelConfig(sliding_layers=(1.0,)), 'each item a whole'),
    (lambda: config.Config(prompt='\udce9'), 'must be text in UTF-8'),
  ],
)
def test_value_of_another_type_is_refused(make, sentence):
  with pytest.raises(config.UsageError) as caught:
    make()
  assert sentence in str(caught.value)


def test_whole_number_may_stand_for_a_fraction():
  assert config.OptimConfig(lr=1).lr == 1


def test_word_outside_the_choices_is_refused_with_the_choices():
  with pytest.raises(config.UsageError, match='off, zero, identity'):
    config.ModelConfig(skip='maybe')


@pytest.mark.parametrize(
  'make, words',
  [
    (
      lambda: config.ModelConfig(num_heads=6, num_kv_heads=4),
      ['--model.num_kv_heads=4', '--model.num_heads=6', '[1, 2, 3, 6]'],
    ),
    (
      lambda: config.ModelConfig(
        num_heads=3, num_kv_heads=1, head_dim=5, rope_fraction=0.4
      ),
      ['--model.head_dim=5', 'even'],
    ),
    (
      lambda: config.ModelConfig(head_dim=6, rope_fraction=0.5),
      ['--model.rope_fraction=0.5', '3 of --model.head_dim=6'],
    ),
    (
      lambda: config.ModelConfig(sliding_layers=(1, 9), sliding_window=8),
      ['--model.sliding_layers=9', '0..3'],
    ),
    (
      lambda: config.ModelConfig(sliding_layers=(3, 4), sliding_window=8),
      ['--model.sliding_layers=4 must', '0..3 (--model.num_layers=4)'],
    ),
    (
      lambda: config.ModelConfig(sliding_layers=(-1,), sliding_window=8),
      ['--model.sliding_layers=-1', '0..3'],
    ),
    (
      lambda: config.ModelConfig(sliding_window=8),
      ['--model.sliding_window=8', 'both or neither'],
    ),
    (
      lambda: config.DataConfig(seq_len=300),
      ['--data.seq_len=300', '--data.record_tokens=32768', '256'],
    ),
    (
      lambda: config.DataConfig(train_tokenizer=300, tokenizer='a.json'),
      ['--data.train_tokenizer=300', '--data.tokenizer=a.json'],
    ),
    (
      lambda: config.DataConfig(train_tokenizer=200),
      ['--data.train_tokenizer=200', '259'],
    ),
    (
      lambda: config.DataConfig(train_tokenizer=258),
      ['--data.train_tokenizer=258', '259'],
    ),
    (
      lambda: config.AegisConfig(nodes=('a', 'b'), spares=2),
      ['--aegis.spares=2', 'none of the 2 --aegis.nodes'],
    ),
    (
      lambda: config.OptimConfig(schedule='wsd'),
      ['--optim.schedule=wsd', '--optim.decay_steps=0'],
    ),
    (
      lambda: config.Config(optim=config.OptimConfig(accumulation=3)),
      ['--optim.accumulation=3', '--data.batch_size=16', '[1, 2, 4, 8, 16]'],
    ),
  ],
)
def test_rule_across_flags_names_them_and_the_way_out(make, words):
  with pytest.raises(config.UsageError) as caught:
    make()
  assert all(word in str(caught.value) for word in words)


def test_derived_numbers_of_the_released_model():
  model = config.ModelConfig(
    num_heads=8, num_kv_heads=2, head_dim=128, num_experts=16
  )
  assert model.num_classes == 17
  assert model.d_rope == 64
  assert model.d_qk == 1280
  assert model.conv_context == 2


def test_two_heads_may_have_an_odd_width():
  assert config.ModelConfig(head_dim=5, rope_fraction=0.4).d_rope == 2


def test_a_fraction_of_a_head_is_rounded_down():
  # transformers: int(head_dim * partial_rotary_factor).
  assert config.ModelConfig(head_dim=10, rope_fraction=0.29).d_rope == 2


def test_what_was_given_is_not_left_to_restore():
  left = config.Config(restore='other').inherited
  assert {'model.num_layers', 'data.tokenizer'} <= left
  given = config.Config.parse(['--restore=other', '--model.num_layers=4'])
  assert left - given.inherited == {'model.num_layers'}


def test_skip_off_leaves_no_class_for_it():
  assert config.ModelConfig(num_experts=16, skip='off').num_classes == 16


def test_from_flagfile_replaces_top_level_fields(tmp_path):
  path = tmp_path / 'a.flags'
  path.write_text('--num_steps=7\n--run_dir=theirs\n')
  made = config.Config.from_flagfile(str(path), run_dir='mine')
  assert (made.num_steps, made.run_dir) == (7, 'mine')

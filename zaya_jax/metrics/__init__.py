# SPDX-License-Identifier: Apache-2.0
"""What a run tells: terminal, log.txt, metrics.jsonl, TensorBoard, samples."""

from zaya_jax.metrics.reporter import Reporter as Reporter

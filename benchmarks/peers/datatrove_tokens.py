# SPDX-License-Identifier: Apache-2.0
"""The same text through datatrove: tokens in its files, documents shuffled.

python -m benchmarks.peers.datatrove_tokens FOLDER OUTPUT TOKENIZER.json
"""

import os
import sys


def main() -> None:
  """Tokenizes all .jsonl files of a folder in one process."""
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  from datatrove.executor import LocalPipelineExecutor
  from datatrove.pipeline.readers import JsonlReader
  from datatrove.pipeline.tokens import DocumentTokenizer

  folder, output, tokenizer = sys.argv[1:]
  LocalPipelineExecutor(
    pipeline=[
      JsonlReader(folder),
      DocumentTokenizer(
        output_folder=output,
        tokenizer_name_or_path=tokenizer,
        local_working_dir=f'{output}-work',
        eos_token='<eos>',
      ),
    ],
    logging_dir=f'{output}-logs',
    tasks=1,
    workers=1,
  ).run()


if __name__ == '__main__':
  main()

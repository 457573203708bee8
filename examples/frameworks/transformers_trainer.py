"""The Trainer of transformers: a tiny BERT classifier with random weights, on made-up tokens."""

from __future__ import annotations

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def train() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    samples = [
        {"input_ids": torch.randint(0, 100, (12,)), "labels": torch.tensor(number % 2)}
        for number in range(64)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            num_train_epochs=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config), args=arguments, train_dataset=samples
        )
        result = trainer.train()
    # One write: the ranks share a stream.
    where = f"rank {arguments.process_index} of {arguments.world_size}"
    print(f"{where}: {result.global_step} steps\n", end="")


if __name__ == "__main__":
    train()

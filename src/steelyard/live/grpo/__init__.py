"""A small model learns a task with GRPO under the controller: real engines, a real tool, a real trainer, no GPU."""

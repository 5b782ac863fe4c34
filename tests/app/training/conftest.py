"""Fixtures of the folder: a log with its broker, and trainers that run beside the test."""

from tests.app.training.trainer_env import env, trainer

__all__ = ["env", "trainer"]

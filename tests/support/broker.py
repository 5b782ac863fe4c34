"""The broker that tests run against: the embedded one, or Apache Kafka where SPRINGTIDE_TEST_BROKER=apache."""

import os

import pytest

USES_APACHE = os.environ.get("SPRINGTIDE_TEST_BROKER") == "apache"
apache_only = pytest.mark.skipif(not USES_APACHE, reason="needs Apache Kafka: make test-kafka")


def embedded_only(reason: str) -> pytest.MarkDecorator:
    """Leave a test out where the broker is Apache Kafka, for this reason."""
    return pytest.mark.skipif(USES_APACHE, reason=f"not with Apache Kafka: {reason}")

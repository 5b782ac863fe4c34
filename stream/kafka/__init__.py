"""Everything that talks to Kafka: consumer, producer, admin. Only this folder imports kafka-python."""

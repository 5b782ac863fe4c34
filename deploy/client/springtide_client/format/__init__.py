"""The bytes of the log: records, tensor files, checksummed JSON."""

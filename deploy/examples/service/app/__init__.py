"""The service's own package: its name is nobody else's business."""

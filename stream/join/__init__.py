"""Impressions meet the clicks, orders and dwell times that belong to them: `source.JoinSource`."""

"""The HTML pages: the dashboard and the API documentation."""

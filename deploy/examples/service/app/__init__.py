"""The service's own package. That it is called `app`, like one of Springtide's, does no harm."""

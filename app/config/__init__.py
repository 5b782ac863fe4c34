"""One TOML file becomes the settings of every part."""

"""Mount a cloud simulation service as a Linux drive."""

__version__ = "0.1.0"

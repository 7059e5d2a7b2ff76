"""The C interface through ctypes."""

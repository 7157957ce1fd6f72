"""Processes, ports, routes, codecs and metrics; puts everything together."""

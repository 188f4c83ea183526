"""Bytes that one GPU holds: parameters, gradients, optimizer state, activations, buffers."""

"""The bench: simulated replicas, load, reports and the demo.

It drives the product from outside, over HTTP or through its public seams; the product never imports it.
Every figure that comes from a simulated replica is labelled *simulated* wherever it is shown.
"""

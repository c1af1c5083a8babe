"""From a bundle to a running Triton server: the model repository, the server's environment and process, the client.

``environment`` builds the Python environment that the server runs in, ``server`` starts and stops one,
``supervisor`` is the process between the two.
"""

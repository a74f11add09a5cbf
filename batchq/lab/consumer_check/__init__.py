"""Whether a consumer of external groups keeps what docs/external.md asks of it.

`run` starts a server and a scheduler of their own, runs the consumer as the program it is, and
goes through the `promises`; `stage` holds the props: groups whose work tells when it starts and
ends, and the consumers that are started, killed and replaced.
"""

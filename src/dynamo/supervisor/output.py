"""The output of supervised processes, by the name under which programs import it."""

from dynamo.process.supervisor.output import PrefixedOutput

__all__ = ["PrefixedOutput"]

"""A dump of a worker's configuration, by the name under which ai-dynamo's programs import it."""

from dynamo.compat.config_dump import (
    add_config_dump_args,
    dump_config,
    get_config_dump,
    get_environment_vars,
    get_runtime_info,
    get_system_info,
    register_encoder,
)

__all__ = [
    "add_config_dump_args",
    "dump_config",
    "get_config_dump",
    "get_environment_vars",
    "get_runtime_info",
    "get_system_info",
    "register_encoder",
]

"""Health checks of workers, by the names under which ai-dynamo's programs import them."""

from dynamo.compat.health_check import HEALTH_CHECK_KEY, HealthCheckPayload, load_health_check_from_env

__all__ = ["HEALTH_CHECK_KEY", "HealthCheckPayload", "load_health_check_from_env"]

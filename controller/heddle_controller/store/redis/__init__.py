"""The store on Redis, which several controllers share."""

from heddle_controller.store.redis.store import RedisStore, open_redis

__all__ = ["RedisStore", "open_redis"]

"""ValkeyStore: one server for many machines (Valkey or Redis), by the client `valkey`.

Every change of several keys is one Lua script, so it happens whole or not at all. Names begin with
the namespace: `v:` frames, `l:` leases, `i` entries by age, `s` their sizes, `d` their schedules,
`t:` entries by tool, `h:` holds, `c:` counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from evenhand.cache.frames import Entry, read
from evenhand.cache.guard import guarded
from evenhand.cache.store import Bounds, Checked, Counters, owner_alive
from evenhand.errors import UserError

_PUT = """
local ns, id, owner = ARGV[1], ARGV[2], ARGV[4]
local lease = ns .. 'l:' .. id
local mine = owner == '' or redis.call('GET', lease) == owner
if owner ~= '' and mine then redis.call('DEL', lease) end
local old = redis.call('GET', ns .. 'v:' .. id)
if old and old ~= ARGV[9] and not (ARGV[5] == '1' and mine) then return old end
redis.call('SET', ns .. 'v:' .. id, ARGV[3])
local before = redis.call('HGET', ns .. 's', id)
redis.call('HSET', ns .. 's', id, string.len(ARGV[3]))
redis.call('HSET', ns .. 'd', id, ARGV[8])
redis.call('INCRBY', ns .. 'b', string.len(ARGV[3]) - (tonumber(before) or 0))
redis.call('ZADD', ns .. 'i', ARGV[6], id)
redis.call('SADD', ns .. 't:' .. ARGV[7], id)
redis.call('SADD', ns .. 'tools', ARGV[7])
redis.call('HSET', ns .. 'o', id, ARGV[7])
return false
"""
_DROP = """
local ns, id = ARGV[1], ARGV[2]
if ARGV[3] ~= '' and redis.call('EXISTS', ns .. 'h:' .. ARGV[3]) == 1 then return -1 end
local size = redis.call('HGET', ns .. 's', id)
local tool = redis.call('HGET', ns .. 'o', id)
if size then redis.call('DECRBY', ns .. 'b', size) end
if tool then
  redis.call('SREM', ns .. 't:' .. tool, id)
  if redis.call('SCARD', ns .. 't:' .. tool) == 0 then redis.call('SREM', ns .. 'tools', tool) end
end
redis.call('HDEL', ns .. 's', id); redis.call('HDEL', ns .. 'd', id)
redis.call('HDEL', ns .. 'o', id); redis.call('ZREM', ns .. 'i', id)
return redis.call('DEL', ns .. 'v:' .. id)
"""
_ACQUIRE = """
local lease = ARGV[1] .. 'l:' .. ARGV[2]
local now = redis.call('GET', lease)
if now and now ~= ARGV[3] and now ~= ARGV[6] then return 0 end
local there = redis.call('GET', ARGV[1] .. 'v:' .. ARGV[2])
if ARGV[5] == '0' and there and there ~= ARGV[7] then return 0 end
redis.call('SET', lease, ARGV[3], 'PX', ARGV[4])
return 1
"""
_OWN = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


class ValkeyStore:
    """See the module. Raises UserError when no server answers at the start."""

    def __init__(self, url: str, bounds: Bounds | None = None) -> None:
        import valkey

        self.counters = Counters()
        self.bounds = bounds or Bounds()
        self.refusals: tuple[type[Exception], ...] = (valkey.ValkeyError, OSError)
        connect: Any = valkey.from_url
        try:
            parts = urlsplit(url)
            query = parse_qs(parts.query)
            self._ns = query.pop("namespace", ["evenhand"])[0] + ":"
            scheme = "valkey" if parts.scheme == "redis" else parts.scheme
            rest = "&".join(f"{k}={v}" for k, vs in query.items() for v in vs)
            place = urlunsplit((scheme, parts.netloc, parts.path, rest, ""))
            self._client: Any = connect(place, socket_timeout=30.0)
            self._client.ping()
        except (*self.refusals, ValueError) as error:
            raise UserError(f"{url}: no Valkey or Redis server answers ({error})") from error
        script = self._client.register_script
        self._put, self._drop = script(_PUT), script(_DROP)
        self._take, self._own = script(_ACQUIRE), script(_OWN)

    @guarded(None)
    def get(self, key: bytes) -> Entry | None:
        """The whole entry of a key, or None."""
        frame = self._client.get(self._name("v:", key))
        if frame is None:
            return None
        entry = read(frame, key)
        if entry is None:
            self.counters.corrupt += 1
        return entry

    @guarded(False)
    def running(self, key: bytes) -> bool:
        """True while somebody alive holds the key's lease."""
        owner = self._client.get(self._name("l:", key))
        return owner is not None and owner_alive(owner.decode(errors="replace"))

    @guarded(None)
    def acquire(
        self, key: bytes, owner: str, seconds: float, *, replace: bool = False
    ) -> bool | None:
        """Take the lease, unless it is held or a whole entry is there."""
        held = self._client.get(self._name("l:", key))
        dead = held if held is not None and not owner_alive(held.decode(errors="replace")) else b""
        milliseconds = max(1, int(seconds * 1000))
        args = [self._ns, key.hex(), owner, milliseconds, int(replace), dead, self._broken(key)]
        return bool(self._take(args=args))

    @guarded(False)
    def renew(self, key: bytes, owner: str, seconds: float) -> bool:
        """Prolong one's own lease."""
        args = [owner, max(1, int(seconds * 1000))]
        return bool(self._own(keys=[self._name("l:", key)], args=args))

    @guarded(None)
    def release(self, key: bytes, owner: str) -> None:
        """Give up one's own lease."""
        if owner:
            self._own(keys=[self._name("l:", key)], args=[owner, 0])

    @guarded(None)
    def put(self, entry: Entry, *, owner: str = "", replace: bool = False) -> Entry | None:
        """Store; the entry that stands."""
        if entry.size > self.bounds.max_value_bytes:
            self.counters.too_large += 1
            self.release(entry.key, owner)
            return None
        described = entry.described
        broken = self._broken(entry.key)
        args: list[Any] = [self._ns, entry.key.hex(), entry.frame(), owner, int(replace)]
        args += [entry.stored, described["tool"].encode(errors="surrogatepass")]
        args += [described["schedule"], broken]
        standing = self._put(args=args)
        if standing is None:
            self._evict(entry.key.hex())
            return entry
        return read(standing, entry.key)

    def _broken(self, key: bytes) -> bytes:
        """The frame that lies there, when it is broken; else what no frame can be."""
        frame: bytes | None = self._client.get(self._name("v:", key))
        return frame if frame is not None and read(frame, key) is None else b"-"

    def _evict(self, new: str) -> None:
        bounds, now = self.bounds, time.time()
        start = 0
        while True:
            count, size = self.size()
            over = (bounds.max_entries is not None and count > bounds.max_entries) or (
                bounds.max_bytes is not None and size > bounds.max_bytes
            )
            if not over and bounds.max_age_s is None:
                return
            oldest = self._client.zrange(self._ns + "i", start, start, withscores=True)
            if not oldest or not (over or oldest[0][1] < now - (bounds.max_age_s or 0.0)):
                return
            identity = oldest[0][0].decode()
            schedule = (self._client.hget(self._ns + "d", identity) or b"").decode()
            # Looked at inside the script: a rollout may take hold of its draws at this very moment.
            if identity == new or self._drop(args=[self._ns, identity, schedule]) < 0:
                start += 1
            else:
                self.counters.evicted += 1

    @guarded(False)
    def delete(self, key: bytes) -> bool:
        """Remove an entry."""
        return bool(self._drop(args=[self._ns, key.hex(), ""]))

    def entries(self, tool: str | None = None) -> Iterator[Entry]:
        """All whole entries, of one tool if given."""
        for identity in self._ids(tool):
            entry = self.get(bytes.fromhex(identity))
            if entry is not None:
                yield entry

    @guarded(())
    def _ids(self, tool: str | None) -> tuple[str, ...]:
        if tool is None:
            found = self._client.zrange(self._ns + "i", 0, -1)
        else:
            name = (self._ns + "t:").encode() + tool.encode(errors="surrogatepass")
            found = self._client.smembers(name)
        return tuple(identity.decode() for identity in found)

    def tools(self) -> set[str]:
        """Names of the tools that have entries."""
        return {name.decode(errors="surrogatepass") for name in self._tools()}

    @guarded(())
    def _tools(self) -> tuple[bytes, ...]:
        return tuple(self._client.smembers(self._ns + "tools"))

    @guarded(None)
    def hold(self, schedule: str, seconds: float) -> None:
        """Keep a schedule's draws from eviction."""
        name = f"{self._ns}h:{schedule}"
        if seconds > 0:
            self._client.set(name, b"1", px=max(1, int(seconds * 1000)))
        else:
            self._client.delete(name)

    @guarded((0, 0))
    def size(self) -> tuple[int, int]:
        """(entries, bytes)."""
        return self._client.zcard(self._ns + "i"), int(self._client.get(self._ns + "b") or 0)

    @guarded(None)
    def tally(self, section: str, deltas: Mapping[str, int]) -> None:
        """Add to the counts."""
        with self._client.pipeline() as pipe:
            pipe.sadd(self._ns + "sections", section)
            for name, delta in deltas.items():
                pipe.hincrby(f"{self._ns}c:{section}", name, delta)
            pipe.execute()

    def tallies(self) -> dict[str, dict[str, int]]:
        """Counts by section."""
        return dict(self._tallied())

    @guarded(())
    def _tallied(self) -> tuple[tuple[str, dict[str, int]], ...]:
        sections = [name.decode() for name in self._client.smembers(self._ns + "sections")]
        counts = [self._client.hgetall(f"{self._ns}c:{section}") for section in sections]
        return tuple(
            (section, {name.decode(): int(n) for name, n in count.items()})
            for section, count in zip(sections, counts, strict=True)
        )

    def check(self, *, fix: bool = False) -> Checked:
        """Read every entry; `fix` removes the broken ones."""
        found = Checked()
        errors = self.counters.errors
        for identity in self._ids(None):
            key = bytes.fromhex(identity)
            if self.get(key) is not None:
                found.entries += 1
                continue
            found.corrupt += 1
            if fix:
                self.delete(key)
        if self.counters.errors > errors:
            found.problems.append("the server did not answer everything")
        return found

    @guarded(None)
    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _name(self, part: str, key: bytes) -> str:
        return f"{self._ns}{part}{key.hex()}"

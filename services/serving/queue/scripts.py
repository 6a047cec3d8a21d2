"""Atomic steps in Redis, as Lua scripts. They run on Redis 6.2 and newer; time is Redis' own clock.

Send them with EVALSHA and load them again on NOSCRIPT (a restarted Redis has forgotten them).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Script:
    """A Lua script and the SHA-1 (hex) under which Redis keeps it."""

    text: str

    @cached_property
    def sha(self) -> bytes:
        return hashlib.sha1(self.text.encode()).hexdigest().encode()  # noqa: S324  (Redis names scripts so)


ENQUEUE = Script("""
-- Appends requests while the queue holds fewer than `limit`, waiting and running together.
-- KEYS: queue, serving set    ARGV: limit, request...
-- Answer: {how many of them were taken, from the first on, entry id of the first, of the last, runners that serve the
-- queue}; the count is -1 when none does. Between the two ids lie these requests, in order, and no others.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local runners = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf')
if runners == 0 then
  return {-1, '', '', 0}
end
local room = ARGV[1] - redis.call('XLEN', KEYS[1])
local taken = math.min(#ARGV - 1, math.max(room, 0))
local first, last = '', ''
for i = 2, taken + 1 do
  last = redis.call('XADD', KEYS[1], '*', 'r', ARGV[i])
  if i == 2 then
    first = last
  end
end
return {taken, first, last, runners}
""")

CANCEL = Script("""
-- Takes requests off the queue that no runner has taken yet. request_id is the first field of a PredictionRequest: the
-- byte 10, the length, the id.
-- KEYS: queue    ARGV: group, entry ids of the first and the last of the write that they came with, request id...
-- Answer: how many were taken off; the others run, and nobody waits for their answers.
local wanted = {}
for i = 4, #ARGV do
  wanted[ARGV[i]] = true
end
local removed = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[3])) do
  local request = entry[2][2]
  if request:byte(1) == 10 and wanted[request:sub(3, 2 + request:byte(2))] then
    local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    if pending.err or #pending == 0 then
      removed = removed + redis.call('XDEL', KEYS[1], entry[1])
    end
  end
end
return removed
""")

COMPLETE = Script("""
-- Hands out the answers of a batch and takes its requests off the queue. Answering a request twice is harmless:
-- whoever asked ignores an answer to a request that is not open.
-- The list of an asynchronous prediction keeps the lifetime it was made with (async_scripts.py).
-- A reply list that is none (another program's key) takes no answer; the other requests of the batch have theirs.
-- The requests go first: a full Redis refuses what grows only until a script has written something.
-- KEYS: queue, reply list...    ARGV: group, expiry of a reply list in ms, count, id x count, one ReplyBatch per list
local count = tonumber(ARGV[3])
local ids = {}
for i = 1, count do
  ids[i] = ARGV[3 + i]
end
if count > 0 then
  redis.pcall('XACK', KEYS[1], ARGV[1], unpack(ids))
  redis.pcall('XDEL', KEYS[1], unpack(ids))
end
for i = 2, #KEYS do
  local pushed = redis.pcall('RPUSH', KEYS[i], ARGV[2 + count + i])
  if type(pushed) == 'number' and
      (string.sub(KEYS[i], 1, 20) ~= 'headrace:prediction:' or redis.call('PTTL', KEYS[i]) < 0) then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
return count
""")

REQUEUE = Script("""
-- Puts back requests that a runner took and did not answer, those of them that are still pending at it, and forgets
-- the runner once nothing is pending at it. Two managers may do this at once: each request is put back once.
-- KEYS: queue    ARGV: group, runner id, then id and request (failed_attempts counted up) in turn
-- Answer: how many were put back.
local moved = 0
for i = 3, #ARGV, 2 do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    redis.call('XDEL', KEYS[1], ARGV[i])
    redis.call('XADD', KEYS[1], '*', 'r', ARGV[i + 1])
    moved = moved + 1
  end
end
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return moved
""")

RENEW = Script("""
-- Says that a runner serves some queues for the next `ttl` milliseconds, also in a full Redis (see COMPLETE).
-- KEYS: serving set...    ARGV: runner id, ttl in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS do
  redis.call('ZREM', KEYS[i], '')
  redis.call('ZADD', KEYS[i], now + ARGV[2], ARGV[1])
end
return now
""")

FINISH = Script("""
-- Says for the next `ttl` milliseconds that a runner, which takes nothing more, still runs what it took; also in a full
-- Redis (see COMPLETE). The sets go by themselves.
-- KEYS: finishing set...    ARGV: runner id, ttl in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  redis.call('ZADD', KEYS[i], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return now
""")

SILENT = Script("""
-- Runners that stopped renewing and do not finish what they took. Whoever recovers what they held removes them from the
-- serving set afterwards (ZREM).
-- KEYS: serving set, finishing set    Answer: {silent runners, all that serve or finish}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, silent, alive = {}, {}, {}
for _, runner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf')) do
  known[runner] = true
  table.insert(alive, runner)
end
for _, runner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  if not known[runner] then
    table.insert(silent, runner)
  end
end
for _, runner in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  table.insert(alive, runner)
end
return {silent, alive}
""")

ALL = (ENQUEUE, CANCEL, COMPLETE, REQUEUE, RENEW, FINISH, SILENT)

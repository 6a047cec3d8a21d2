"""Asynchronous predictions in Redis, in one step each, as Lua scripts (Redis 6.2 and newer; Redis' own clock).

    headrace:prediction:<id>     list: a header (JSON, written by the front that took the request), then the ReplyBatch
                                 that a runner pushed. The first one counts; a second, after a requeue, is ignored.
    headrace:predictions         sorted set: id -> Redis time in ms when it is forgotten
    headrace:predictions:bytes   hash: id -> bytes that are counted for it; the field "" is their sum
    headrace:predictions:open    list of ids whose answers were not counted yet
    headrace:predictions:held    hash, where identity is on: id -> its principal; `count ` and `bytes ` before the name
                                 of a principal -> its predictions, and bytes that are counted for them

Where identity is on, requests wait here for their turn, as at a front (turns.py): a front that dies must lose none.

    headrace:predictions:lines   hash: queue -> the requests of all lines together that may be in it, and rows a turn
    headrace:predictions:request:<id>           the request, as long as it waits
    headrace:predictions:line:<principal>:<queue>   list of `rows id`, in order
    headrace:predictions:turns:<queue>          list of the principals with a line; the first has its turn
    headrace:predictions:credits:<queue>   hash: principal -> rows that it may put in; `waiting ` -> those of all lines
    headrace:predictions:sent:<queue>      set of ids that are in the queue, and were not answered at the last look

In a Redis Cluster `{<model>}:` follows `headrace:prediction:` and `headrace:predictions:`, and the sorted set is
`headrace:predictions:{<model>}` (async_redis.py): all that a script touches is where the model's queues are. So the
bounds that a script gets are what all other models leave of the replica's (async_totals.py). A script declares the keys
that its caller knows. The names of the others are made of what it reads, ids and principals, behind the same prefixes,
and so in the same slot.

A runner needs to know nothing of this: the list is the reply address of the request. Its lifetime is the one the front
gave it, because COMPLETE (scripts.py) leaves lists under this prefix theirs.
"""

from services.serving.queue.scripts import Script

NO_RUNNER, QUEUE_FULL, TOO_MANY, TOO_LARGE, SHARE_FULL, HOLDS_SHARE = -1, 0, -3, -4, -5, -6
WAITS = 2

_ADVANCE = """
local lines = KEYS[#KEYS]
local own = string.sub(lines, 1, -6)
-- Puts in what the lines' part of the queue has room for: deficit round robin, a row costs one. What is forgotten or
-- past its deadline is left out.
local function advance(queue, prefix)
  local most, quantum = string.match(redis.call('HGET', lines, queue) or '0 1', '(%d+) (%d+)')
  local turns, credits, sent = own .. 'turns:' .. queue, own .. 'credits:' .. queue, own .. 'sent:' .. queue
  for _, id in ipairs(redis.call('SMEMBERS', sent)) do
    if redis.call('LLEN', prefix .. id) ~= 1 then
      redis.call('SREM', sent, id)
    end
  end
  local free = most - redis.call('SCARD', sent)
  while free > 0 do
    local principal = redis.call('LINDEX', turns, 0)
    if not principal then
      redis.call('HDEL', lines, queue)
      redis.call('DEL', credits)
      return 0
    end
    local line = own .. 'line:' .. principal .. ':' .. queue
    local rows, id = string.match(redis.call('LINDEX', line, 0), '(%d+) (.+)')
    local request = redis.call('GET', own .. 'request:' .. id)
    local is_wanted = request and redis.call('LLEN', prefix .. id) == 1
    if is_wanted and tonumber(redis.call('HGET', credits, principal) or 0) < tonumber(rows) then
      redis.call('HINCRBY', credits, principal, quantum)
      redis.call('LMOVE', turns, turns, 'LEFT', 'RIGHT')
    else
      redis.call('LPOP', line)
      redis.call('HINCRBY', credits, 'waiting ', -1)
      if is_wanted then
        redis.call('HINCRBY', credits, principal, -rows)
        local header = cjson.decode(redis.call('LINDEX', prefix .. id, 0))
        header.entry = redis.call('XADD', queue, '*', 'r', request)
        redis.call('LSET', prefix .. id, 0, cjson.encode(header))
        redis.call('SADD', sent, id)
        free = free - 1
      end
      redis.call('DEL', own .. 'request:' .. id)
      if redis.call('LLEN', line) == 0 then
        redis.call('LPOP', turns)
        redis.call('HDEL', credits, principal)
      end
    end
  end
  return redis.call('LLEN', turns)
end
"""

_COUNT = """
local function held_beside(all_bytes)
  return string.sub(all_bytes, 1, -6) .. 'held'
end
-- Adds bytes to what is counted, for all and for the prediction's principal, and predictions to the principal's.
local function count(all_bytes, id, bytes, predictions)
  redis.call('HINCRBY', all_bytes, '', bytes)
  local held = held_beside(all_bytes)
  local principal = redis.call('HGET', held, id)
  if principal then
    redis.call('HINCRBY', held, 'bytes ' .. principal, bytes)
    if redis.call('HINCRBY', held, 'count ' .. principal, predictions) <= 0 then
      redis.call('HDEL', held, 'bytes ' .. principal, 'count ' .. principal)
    end
    if predictions < 0 then
      redis.call('HDEL', held, id)
    end
  end
end
"""

_FORGET_OVER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function forget_over(index, all_bytes, most)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)) do
    count(all_bytes, id, -(redis.call('HGET', all_bytes, id) or 0), -1)
    redis.call('HDEL', all_bytes, id)
    redis.call('ZREM', index, id)
  end
end
"""

SUBMIT = Script(
    _ADVANCE
    + _COUNT
    + _FORGET_OVER
    + """
-- Enqueues one request and makes the place for its answer, or does nothing. Beforehand it forgets what is over and
-- counts the answers that came since: each call looks at more open ids than it adds, so the count stays close behind.
-- KEYS: queue, serving set, prediction, index, bytes, open, request, lines
-- ARGV: queue limit, request, id, header, lifetime in ms, limit of predictions, limit of bytes, prefix of predictions,
--   principal ('' without identity), rows as they count, what `lines` holds for the queue
-- Answer: 1 when it is in the queue or nobody waits for a turn, 2 when requests wait, or one of the numbers above.
-- Where it has been done already, 1: after a failover a front may ask twice.
if redis.call('EXISTS', KEYS[3]) == 1 then
  return 1
end
if redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') == 0 then
  return -1
end
local credits, line = own .. 'credits:' .. KEYS[1], own .. 'line:' .. ARGV[9] .. ':' .. KEYS[1]
local room = ARGV[1] - redis.call('XLEN', KEYS[1]) - (redis.call('HGET', credits, 'waiting ') or 0)
if room <= 0 then
  return 0
end
if ARGV[9] ~= '' and redis.call('LLEN', line) >= 8 * room then
  return -5
end
forget_over(KEYS[4], KEYS[5], 64)
for i = 1, math.min(16, redis.call('LLEN', KEYS[6])) do
  local id = redis.call('LPOP', KEYS[6])
  local counted = redis.call('HGET', KEYS[5], id)
  if counted then
    local key = ARGV[8] .. id
    if redis.call('LLEN', key) < 2 then
      redis.call('RPUSH', KEYS[6], id)
    else
      local size = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
      redis.call('HSET', KEYS[5], id, size)
      count(KEYS[5], id, size - counted, 0)
    end
  end
end
local places = ARGV[6] - redis.call('ZCARD', KEYS[4])
if places <= 0 then
  return -3
end
local size = #ARGV[2] + #ARGV[4]
local bytes_left = ARGV[7] - (redis.call('HGET', KEYS[5], '') or 0)
if size > bytes_left then
  return -4
end
if ARGV[9] ~= '' then
  local held = held_beside(KEYS[5])
  local its_count = tonumber(redis.call('HGET', held, 'count ' .. ARGV[9]) or 0)
  local its_bytes = tonumber(redis.call('HGET', held, 'bytes ' .. ARGV[9]) or 0)
  if its_count >= 8 * places or its_bytes >= 8 * bytes_left then
    return -6
  end
  redis.call('HSET', held, ARGV[3], ARGV[9])
end
local header = cjson.decode(ARGV[4])
header.entry = ''
if ARGV[9] == '' then
  header.entry = redis.call('XADD', KEYS[1], '*', 'r', ARGV[2])
end
redis.call('RPUSH', KEYS[3], cjson.encode(header))
redis.call('PEXPIRE', KEYS[3], ARGV[5])
redis.call('ZADD', KEYS[4], now + ARGV[5], ARGV[3])
redis.call('HSET', KEYS[5], ARGV[3], size)
count(KEYS[5], ARGV[3], size, 1)
redis.call('RPUSH', KEYS[6], ARGV[3])
if ARGV[9] == '' then
  return 1
end
redis.call('SET', KEYS[7], ARGV[2], 'PX', ARGV[5])
if redis.call('RPUSH', line, ARGV[10] .. ' ' .. ARGV[3]) == 1 then
  redis.call('RPUSH', own .. 'turns:' .. KEYS[1], ARGV[9])
end
redis.call('HINCRBY', credits, 'waiting ', 1)
redis.call('HSET', lines, KEYS[1], ARGV[11])
return advance(KEYS[1], ARGV[8]) > 0 and 2 or 1
"""
)

HELD = Script(
    _COUNT
    + _FORGET_OVER
    + """
-- What the predictions hold that are not over.    KEYS: index, bytes
-- Answer: {their number, bytes that are counted for them}.
forget_over(KEYS[1], KEYS[2], 1000)
return {redis.call('ZCARD', KEYS[1]), tonumber(redis.call('HGET', KEYS[2], '') or 0)}
"""
)

ADVANCE = Script(
    _ADVANCE
    + """
-- Gives all lines their turns.    KEYS: lines    ARGV: prefix of predictions
-- Answer: queues with requests that wait.
local count = 0
for _, queue in ipairs(redis.call('HKEYS', lines)) do
  if advance(queue, ARGV[1]) > 0 then
    count = count + 1
  end
end
return count
"""
)

READ = Script("""
-- The header and the answer of a prediction. Past its deadline one without an answer gets one, for good: ARGV[1].
-- KEYS: prediction    ARGV: ReplyBatch that says so, now in epoch microseconds
-- Answer: nil when there is no such prediction, else {header} or {header, ReplyBatch}.
local header = redis.call('LINDEX', KEYS[1], 0)
if not header or string.sub(header, 1, 1) ~= '{' then
  return false
end
if redis.call('LLEN', KEYS[1]) < 2 then
  if tonumber(ARGV[2]) <= tonumber(cjson.decode(header).deadline_at_micros) then
    return {header}
  end
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return {header, redis.call('LINDEX', KEYS[1], 1)}
""")

LENGTHS = Script("""
-- How many elements each list has: 2 and more means answered, 0 unknown.
-- KEYS: prediction...
local lengths = {}
for i = 1, #KEYS do
  lengths[i] = redis.call('LLEN', KEYS[i])
end
return lengths
""")

FORGET = Script(
    _COUNT
    + """
-- Takes a request off its queue and forgets its answer. A runner that has the request finishes it for nobody: its
-- answer makes a list without a header, which counts as none and goes away by itself.
-- KEYS: prediction, index, bytes, request    ARGV: id
-- Answer: nil when there is no such prediction, 1 when it had no answer yet, else 0.
local header = redis.call('LINDEX', KEYS[1], 0)
if not header or string.sub(header, 1, 1) ~= '{' then
  return false
end
local told = cjson.decode(header)
local is_open = redis.call('LLEN', KEYS[1]) < 2
if is_open and told.entry ~= '' then
  redis.call('XDEL', told.queue, told.entry)
end
redis.call('DEL', KEYS[1], KEYS[4])
redis.call('ZREM', KEYS[2], ARGV[1])
count(KEYS[3], ARGV[1], -(redis.call('HGET', KEYS[3], ARGV[1]) or 0), -1)
redis.call('HDEL', KEYS[3], ARGV[1])
return is_open and 1 or 0
"""
)

ALL = (SUBMIT, HELD, ADVANCE, READ, LENGTHS, FORGET)

"""What the door asks of Redis, each in one call.

KEYS[1] is a sorted set: permit id by the millisecond at which its lease ends. KEYS[2] is a hash: permit id → its weight
as `sequences:tokens`; `total:requests` and `total:tokens`, their sums; and `drain:…`, the decayed rates at which
sequences and tokens left (exponentially weighted with a time constant of 10 s), and when they were last reckoned.
"""

_COMMON = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function take_out(id)
  local weight = redis.call('HGET', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  if not weight then return 0, 0 end
  redis.call('HDEL', KEYS[2], id)
  local sequences, tokens = string.match(weight, '^(%d+):(%d+)$')
  redis.call('HINCRBY', KEYS[2], 'total:requests', -sequences)
  redis.call('HINCRBY', KEYS[2], 'total:tokens', -tokens)
  return tonumber(sequences), tonumber(tokens)
end

local function sweep()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do take_out(id) end
end

local function total(name)
  return tonumber(redis.call('HGET', KEYS[2], 'total:' .. name) or 0)
end

local function rate(name)
  local at = tonumber(redis.call('HGET', KEYS[2], 'drain:at') or now)
  local last = tonumber(redis.call('HGET', KEYS[2], 'drain:' .. name) or 0)
  return last * math.exp(-math.max(0, now - at) / 10000)
end

-- What is too much, and at what rate (a thousand seconds) that kind leaves: the slower of the two answers counts.
local function refusal(sequences, tokens, max_sequences, max_tokens)
  local over_sequences = total('requests') + sequences - max_sequences
  local over_tokens = total('tokens') + tokens - max_tokens
  local by_sequences = math.max(0, over_sequences) * math.max(rate('tokens'), 0.001)
  local by_tokens = math.max(0, over_tokens) * math.max(rate('requests'), 0.001)
  if by_sequences >= by_tokens then
    return {0, total('requests'), total('tokens'), over_sequences, math.floor(rate('requests') * 1000)}
  end
  return {0, total('requests'), total('tokens'), over_tokens, math.floor(rate('tokens') * 1000)}
end
"""

ENTER = (
    _COMMON
    + """
local lease, max_sequences, max_tokens = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
sweep()
local sequences, tokens = 0, 0
for i = 4, #ARGV, 3 do
  sequences = sequences + ARGV[i + 1]
  tokens = tokens + ARGV[i + 2]
end
if total('requests') + sequences > max_sequences or total('tokens') + tokens > max_tokens then
  return refusal(sequences, tokens, max_sequences, max_tokens)
end
for i = 4, #ARGV, 3 do
  redis.call('ZADD', KEYS[1], now + lease, ARGV[i])
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1] .. ':' .. ARGV[i + 2])
end
redis.call('HINCRBY', KEYS[2], 'total:requests', sequences)
redis.call('HINCRBY', KEYS[2], 'total:tokens', tokens)
return {1, 0, 0, 0, 0}
"""
)

SETTLE = (
    _COMMON
    + """
local id, tokens, max_tokens = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local weight = redis.call('HGET', KEYS[2], id)
if not weight then return {1, 0, 0, 0, 0} end
local difference = tokens - string.match(weight, ':(%d+)$')
if difference > 0 and total('tokens') + difference > max_tokens then
  sweep()
  if total('tokens') + difference > max_tokens then
    return refusal(0, difference, math.huge, max_tokens)
  end
end
redis.call('HSET', KEYS[2], id, ARGV[2] .. ':' .. ARGV[3])
redis.call('HINCRBY', KEYS[2], 'total:tokens', difference)
return {1, 0, 0, 0, 0}
"""
)

RENEW = (
    _COMMON
    + """
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[1]), ARGV[i]) end
sweep()
return redis.status_reply('OK')
"""
)

RELEASE = (
    _COMMON
    + """
local before_sequences, before_tokens = rate('requests'), rate('tokens')
local sequences, tokens = take_out(ARGV[1])
if sequences > 0 then
  redis.call('HSET', KEYS[2], 'drain:at', now, 'drain:requests', tostring(before_sequences + sequences / 10),
    'drain:tokens', tostring(before_tokens + tokens / 10))
end
return redis.status_reply('OK')
"""
)
